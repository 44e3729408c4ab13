"""The trace of one request: its own span, from the call to the last response, and its answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.answer_trace import AnswerTrace
from orchestrator.request import GenerationRequest
from orchestrator.token_spans import TokenSpans
from paceline.errors import PacelineError
from paceline.generation import GenerateCall, Outcome, TraceSpan
from paceline.telemetry.recorder import MAX_RETURNED_SPANS, new_span_id
from paceline.telemetry.span import MAX_TEXT, Attribute, cut
from paceline.telemetry.trace_context import TraceContext
from paceline.telemetry.tracing import Tracing

RETURN_TIMEOUT_S = 1.0
"""How long the workers' spans are waited for."""


@contextmanager
def request_trace(
    tracing: Tracing,
    carrier: Mapping[str, str],
    live: set[RequestTrace],
    *,
    returns_spans: bool,
) -> Iterator[RequestTrace | None]:
    """Trace a request, if it is to be; however it ends, its span does.

    It is in `live` meanwhile: who stops may end it earlier.
    """
    context = tracing.request(carrier, returns_spans=returns_spans)
    if context is None:
        yield None
        return
    trace = RequestTrace(tracing, context)
    live.add(trace)
    error = ""
    try:
        yield trace
    except PacelineError as failure:
        error = f"{failure.code}: {failure}"
        raise
    except (asyncio.CancelledError, GeneratorExit):
        error = "CANCELLED: the call was cancelled"
        raise
    except BaseException as failure:
        error = f"INTERNAL: {failure!r}"
        raise
    finally:
        live.discard(trace)
        trace.end(error)


class RequestTrace:
    """One traced request; used on the event loop only."""

    def __init__(self, tracing: Tracing, context: TraceContext) -> None:
        self.context = context
        self._tracing = tracing
        self._span_id = new_span_id()
        self._root = tracing.recorder(context)
        self._below = tracing.recorder(replace(context, parent_id=self._span_id))
        self._started_ns = time.time_ns()
        self._prepared_ns = 0
        self._attributes: dict[str, Attribute] = {
            "rpc.system": "grpc",
            "gen_ai.provider.name": "paceline",
            "paceline.level": context.level.name.lower(),
        }
        self._answers: dict[int, AnswerTrace] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._texts: dict[int, str] = {}
        self._num_answers = self._num_unfinished = 1
        self._has_ended = False

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self.context.trace_id:032x}"

    def completed(self, call: GenerateCall, request: GenerationRequest, model: str) -> None:
        """The request has been checked and made complete."""
        now = time.time_ns()
        self._prepared_ns = now - self._started_ns
        self._num_answers = self._num_unfinished = request.num_answers
        sampling, settings = request.sampling, request.settings
        prepared = {"paceline.prompt_tokens": len(request.prompt)}
        self._below.add("prepare", self._started_ns, now, prepared)
        self._attributes |= {
            "gen_ai.operation.name": "chat" if call.messages else "text_completion",
            "gen_ai.request.model": cut(model),
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            # a 64-bit seed may be more than a signed integer holds
            "gen_ai.request.seed": sampling.seed if sampling.seed < 2**63 else str(sampling.seed),
            "gen_ai.usage.input_tokens": len(request.prompt),
            "paceline.acceptance": sampling.acceptance.value,
            "paceline.window": settings.window,
            "paceline.num_speculative_tokens": settings.num_speculative_tokens,
        }
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(sampling, name):
                self._attributes[f"gen_ai.request.{name}"] = getattr(sampling, name)
        if request.num_answers > 1:
            self._attributes["gen_ai.request.choice.count"] = request.num_answers
        if self._tracing.record_text:
            given = [(message["role"], message["content"]) for message in call.messages]
            if call.prompt:
                given = [("user", call.prompt)]
            if given:
                self._attributes["gen_ai.input.messages"] = _messages(given)

    def answer(self, index: int, max_tokens: int) -> AnswerTrace:
        """The trace of one answer."""
        tokens = TokenSpans(
            self._below,
            started_ns=self._started_ns,
            max_spans=self._tracing.max_token_spans,
            max_tokens=max_tokens,
            answer=index if self._num_answers > 1 else None,
            record_text=self._tracing.record_text,
        )
        tokens.prepared(self._prepared_ns)
        self._answers[index] = AnswerTrace(self._below, tokens, max_tokens=max_tokens)
        return self._answers[index]

    def delivered(self, index: int, texts: Sequence[str]) -> None:
        """A response with tokens of answer `index` has been written."""
        if self._tracing.record_text and sum(map(len, self._texts.values())) < MAX_TEXT:
            self._texts[index] = self._texts.get(index, "") + "".join(texts)
        answer = self._answers.get(index)
        if answer is not None:
            answer.delivered(time.time_ns())

    def finished(self, index: int, outcome: Outcome) -> None:
        """An answer is complete."""
        self._outcomes[index] = outcome

    def ends_with(self, *, is_outcome: bool) -> bool:
        """Count a response that is about to be sent; whether it is the last and takes the spans."""
        self._num_unfinished -= is_outcome
        return is_outcome and self._num_unfinished == 0 and self.context.returns_spans

    async def returned(self) -> list[TraceSpan]:
        """End the request's span, and all that were made of the request, a bounded number."""
        self.end()
        answers = self._answers.values()
        found = await asyncio.gather(*(answer.returned(RETURN_TIMEOUT_S) for answer in answers))
        own = self._root.collected + self._below.collected
        return [*own, *(span for spans in found for span in spans)][: 2 * MAX_RETURNED_SPANS]

    def end(self, error: str = "") -> None:
        """The request is over. Idempotent."""
        for answer in self._answers.values():
            answer.close()
            if error:
                answer.forget()
        if self._has_ended:
            return
        self._has_ended = True
        self._root.add(
            "generate",
            self._started_ns,
            time.time_ns(),
            self._attributes | self._sums(error),
            span_id=self._span_id,
            error=error,
            is_request=True,
        )

    def _sums(self, error: str) -> dict[str, Attribute]:
        """What came of the request, over all answers."""
        answers = list(self._answers.values())
        outcomes = [self._outcomes[index] for index in sorted(self._outcomes)]
        sums: dict[str, Attribute] = {
            "paceline.discarded": sum(answer.num_discarded for answer in answers),
            "paceline.token_spans.left_out": sum(a.num_token_spans_left_out for a in answers),
            "paceline.block_spans.left_out": sum(a.num_block_spans_left_out for a in answers),
        }
        if error:
            sums["error.type"] = error.partition(":")[0]
        if self._texts:
            said = [("assistant", self._texts[index]) for index in sorted(self._texts)]
            sums["gen_ai.output.messages"] = _messages(said)
        if not outcomes:
            return sums
        stats = [outcome.stats for outcome in outcomes]
        return sums | {
            "gen_ai.usage.output_tokens": sum(o.usage.completion_tokens for o in outcomes),
            "gen_ai.response.finish_reasons": tuple(o.finish_reason.value for o in outcomes),
            "paceline.speculation": stats[0].speculation,
            "paceline.drafted": sum(s.drafted for s in stats),
            "paceline.judged": sum(s.judged for s in stats),
            "paceline.accepted": sum(s.accepted for s in stats),
            "paceline.passes": sum(s.passes for s in stats),
            "paceline.epochs": sum(s.epochs for s in stats),
            "paceline.draft_ms": sum(s.draft_ms for s in stats),
            "paceline.verify_ms": sum(s.verify_ms for s in stats),
            "paceline.queue_ms": sum(s.queue_ms for s in stats),
            "paceline.bytes_drafter": sum(s.bytes_drafter for s in stats),
            "paceline.bytes_verifier": sum(s.bytes_verifier for s in stats),
            "paceline.time_to_first_token_ms": min(s.time_to_first_token_ms for s in stats),
        }


def _messages(given: Sequence[tuple[str, str]]) -> str:
    """The last of the messages in OpenTelemetry's JSON form, cut to what a span may hold."""
    last = given[-4:]
    return json.dumps(
        [
            {
                "role": cut(role, 20),
                "parts": [{"type": "text", "content": cut(content, MAX_TEXT // len(last))}],
            }
            for role, content in last
        ],
        ensure_ascii=False,
    )
