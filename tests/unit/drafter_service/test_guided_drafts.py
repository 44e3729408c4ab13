"""Drafts of a guided session obey its grammar, whatever was rolled back before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline import Pipeline, outputs, worker_info
from support.small_tokenizer import END, small_tokenizer

from drafter_service.drafter import Proposal, ProposeRequest
from drafter_service.model import ModelDrafter
from paceline.config import RuntimeConfig
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import regex_grammar
from paceline.runtime.scripted import ScriptedRunner, hashed_script
from paceline.sampling.params import Acceptance, SamplingParams

TOKENIZER = small_tokenizer()
VOCAB = TOKENIZER.vocab_size
ENGINE = GrammarEngine(TOKENIZER)


class CheckedDrafter(ModelDrafter):
    """Compares each draft with the mask of a matcher made anew.

    It takes notes, since the engine answers whatever is raised here.
    """

    right = 0
    wrong = 0

    def propose(self, requests: Sequence[ProposeRequest]) -> list[Proposal]:
        proposals = super().propose(requests)
        for request, proposal in zip(requests, proposals, strict=True):
            output = request.token_ids[request.opening.prompt_length :]
            matcher = ENGINE.matcher(request.opening.grammar, prompt_length=0, end_ids=[END])
            stands = matcher.extend(output) == len(output) and END not in output
            for draw in proposal.draws:
                fits = stands and bool(matcher.mask()[draw.token_id])
                self.right += fits
                self.wrong += not fits
            self.wrong += proposal.error is not None
        return proposals


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 20),
    window=st.integers(1, 12),
    pattern=st.sampled_from(["(ab|ba|cd|d(a|b)c)*d{3}", "((a|b)(c|d)){4,9}", "(b|c)*(ae|d)"]),
    acceptance=st.sampled_from([None, *Acceptance]),
)
def test_no_draft_is_forbidden_and_none_follows_an_end(
    seed: int, window: int, pattern: str, acceptance: Acceptance | None
) -> None:
    """After rejections too; where nothing can follow, nothing is proposed."""
    target, draft = hashed_script(VOCAB, seed=1), hashed_script(VOCAB, seed=2)

    def half_right(history: Sequence[int]) -> torch.Tensor:
        return (target if hash(tuple(history[-2:])) % 3 else draft)(history)

    drafter = CheckedDrafter(
        ScriptedRunner(half_right, vocab_size=VOCAB),
        RuntimeConfig(),
        worker_info("model", VOCAB),
        ENGINE,
    )
    pipeline = Pipeline(
        ScriptedRunner(target, vocab_size=VOCAB), drafter, eos_token_ids=[END], grammar=ENGINE
    )
    sampling = SamplingParams(
        temperature=0.0 if acceptance is None else 1.0,
        acceptance=acceptance or Acceptance.REJECTION,
        seed=seed,
        max_tokens=24,
    )
    relays = [
        pipeline.open([1, place], sampling, window=window, grammar=regex_grammar(pattern))
        for place in range(3)
    ]
    pipeline.run()
    assert drafter.right > 0
    assert drafter.wrong == 0
    assert all(outputs(relay) for relay in relays)
    assert not drafter._matchers
