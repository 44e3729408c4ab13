"""A generation's answer as it forms: verdicts in, deliverable tokens out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

from orchestrator.detokenizer import Detokenizer
from orchestrator.relay import Relay
from orchestrator.request import GenerationRequest
from orchestrator.stop_strings import StopStrings
from orchestrator.text_stream import Piece, TextStream
from paceline.generation import Outcome, OutputToken, SpeculationStats, TopLogprob, Usage
from paceline.runtime.tokenizer import Tokenizer
from paceline.types import FinishReason, Origin, TokenLogprobs, Verdict

PROMPT_PIECE = 256
"""Tokens of the prompt in a message."""


class Reply:
    """Turns the verdicts of one generation into tokens with text, in order, each once."""

    def __init__(self, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        self.num_delivered = 0
        self._num_accepted = 0  # of those delivered: a stop string may cut a block
        self.finish_reason: FinishReason | None = None
        self._request = request
        self._tokenizer = tokenizer
        stops = StopStrings(request.stops, include=request.includes_stop) if request.stops else None
        self._text = TextStream(
            Detokenizer(tokenizer), stops, min_tokens=request.sampling.min_tokens
        )
        self._details: deque[tuple[Origin, TokenLogprobs | None]] = deque()
        self._started = time.monotonic()

    @property
    def num_taken(self) -> int:
        """Tokens that the verifier need not produce again: delivered, or held for a stop string."""
        return self.num_delivered + self._text.num_held

    def add(self, verdict: Verdict) -> list[OutputToken]:
        """The tokens that a verdict makes deliverable, in order."""
        pieces: list[Piece] = []
        for index, token_id in enumerate(verdict.token_ids):
            self._details.append(_details(verdict, index))
            pieces += self._text.push(token_id)
        self.finish_reason = verdict.finish_reason
        if verdict.finish_reason is not None:
            pieces += self._text.finish()
        if self._text.stopped:
            self.finish_reason = FinishReason.STOP
        return [self._token(piece) for piece in pieces]

    def prompt_tokens(self, logprobs: Sequence[TokenLogprobs]) -> Iterator[list[OutputToken]]:
        """The prompt's ids from the second on with their log-probabilities, if there are any.

        In pieces: a long prompt's would be too much for one message, and for one turn of the loop.
        """
        for start in range(0, len(logprobs), PROMPT_PIECE):
            entries = logprobs[start : start + PROMPT_PIECE]
            token_ids = self._request.prompt[1 + start : 1 + start + len(entries)]
            yield [
                self._output(token_id, self._tokenizer.token_text(token_id), None, entry)
                for token_id, entry in zip(token_ids, entries, strict=True)
            ]

    def _token(self, piece: Piece) -> OutputToken:
        self.num_delivered += 1
        origin, logprobs = self._details.popleft()
        self._num_accepted += origin is Origin.ACCEPTED
        return self._output(piece.token_id, piece.text, origin, logprobs)

    def _output(
        self, token_id: int, text: str, origin: Origin | None, logprobs: TokenLogprobs | None
    ) -> OutputToken:
        if logprobs is None:
            return OutputToken(token_id, text, origin)
        top = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
        alternatives = tuple(
            TopLogprob(i, self._tokenizer.token_text(i), logprob) for i, logprob in top
        )
        return OutputToken(token_id, text, origin, logprobs.logprob, alternatives)

    def outcome(self, relay: Relay) -> Outcome:
        """How it ended, once `finish_reason` is known."""
        assert self.finish_reason is not None
        counts = relay.session.counts
        stats = SpeculationStats(
            speculation=_speculation(self._request, relay),
            drafted=counts.drafted,
            judged=counts.judged,
            accepted=self._num_accepted,
            passes=counts.passes,
            mean_acceptance_length=counts.committed / counts.passes if counts.passes else 0.0,
            bytes_drafter=counts.bytes_drafter,
            bytes_verifier=counts.bytes_verifier,
            time_to_first_token_ms=(relay.first_token_s or 0.0) * 1e3,
            total_ms=(time.monotonic() - self._started) * 1e3,
            draft_ms=counts.draft_us / 1e3,
            verify_ms=counts.verify_us / 1e3,
            queue_ms=counts.queue_us / 1e3,
            seed=relay.seed,
            epochs=counts.epochs,
        )
        usage = Usage(len(self._request.prompt), self.num_delivered, counts.cached_prompt_tokens)
        return Outcome(self.finish_reason, usage, stats)


def _details(verdict: Verdict, index: int) -> tuple[Origin, TokenLogprobs | None]:
    logprobs = verdict.logprobs[index] if verdict.logprobs else None
    if index < verdict.accepted_length:
        return Origin.ACCEPTED, logprobs
    assert verdict.next_origin is not None, "the token after the accepted ones has an origin"
    return verdict.next_origin, logprobs


def _speculation(request: GenerationRequest, relay: Relay) -> str:
    if not request.settings.speculation:
        return "off"
    return "on" if relay.had_drafter else "unavailable"
