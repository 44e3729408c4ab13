"""Under a grammar the output law of `rejection` and `block` is the masked target's, exactly."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch
from exact_law import distance, expected_accepted, output_law
from support.small_tokenizer import small_tokenizer
from torch import Tensor
from toy_pair import PROMPT, Tokens, ToyPair

from paceline.errors import PacelineError
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import regex_grammar
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.draw import DraftRow, draw_drafts
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.sampling.probabilities import RowContext

TOKENIZER = small_tokenizer(("a", "b", "ab"))
ENGINE = GrammarEngine(TOKENIZER)
END = 3
SAMPLED = [Acceptance.REJECTION, Acceptance.BLOCK]
TOLERANCE = 1e-6


@dataclass(frozen=True)
class GuidedPair(ToyPair):
    """A pair under a grammar; the drafter may not know of it."""

    pattern: str = "(ab|b)*a"
    drafter_is_guided: bool = True

    @functools.cache  # noqa: B019
    def mask(self, tokens: Tokens) -> Tensor | None:
        """As the verifier has it for the row after a block of drafts that leads to `tokens`."""
        matcher = ENGINE.matcher(
            regex_grammar(self.pattern), prompt_length=len(PROMPT), end_ids=[END]
        )
        output = tokens[len(PROMPT) :]
        return matcher.masks(output, len(output) + 1)[-1]

    def context(self, tokens: Tokens, drafts: Tokens = ()) -> RowContext:
        return RowContext(self.params, tokens, len(PROMPT), (END,), drafts, self.mask(tokens))

    @functools.cache  # noqa: B019
    def draft_row(self, tokens: Tokens) -> DraftProbs:
        if self.drafter_is_guided:
            return super().draft_row(tokens)
        free = RowContext(self.params, tokens, len(PROMPT))
        row = DraftRow(free, 0, self.draft_top_k)
        draw = draw_drafts(self.draft_logits(tokens)[None], [row])[0]
        assert not isinstance(draw, PacelineError)
        assert draw.probs is not None
        return draw.probs

    def masked_law(self, length: int) -> dict[Tokens, float]:
        """Plain sampling by the definition: softmax of the logits that the grammar leaves."""
        law: dict[Tokens, float] = {(): 1.0}
        for _ in range(length):
            longer: dict[Tokens, float] = {}
            for output, weight in law.items():
                logits = self.target_logits(PROMPT + output) / self.params.temperature
                mask = self.mask(PROMPT + output)
                if mask is not None:
                    logits = logits.masked_fill(~mask[: self.vocab_size], float("-inf"))
                probs = logits.softmax(0)
                for token, probability in enumerate(probs.tolist()):
                    if probability > 0.0:
                        longer[(*output, token)] = weight * probability
            law = longer
        return law


PATTERNS = ["(ab|b)*a", "(a|b){1,2}", "a(ba)*|b", "ab?|bbc|b"]


@pytest.mark.parametrize("guided", [True, False], ids=["guided", "unguided"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("acceptance", SAMPLED)
def test_the_law_is_the_masked_targets(
    acceptance: Acceptance, pattern: str, *, guided: bool
) -> None:
    """Over several rounds of three drafts, some of them forbidden or into a dead end."""
    for temperature, draft_top_k, bonus in ((1.0, 0, True), (0.6, 2, False)):
        params = SamplingParams(temperature=temperature)
        pair = GuidedPair(4, params, draft_top_k, pattern=pattern, drafter_is_guided=guided)
        law = output_law(pair, acceptance, 3, 3, bonus=bonus)
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-6)
        assert distance(law, pair.masked_law(3)) < TOLERANCE


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_drafter_that_knows_the_grammar_has_more_accepted(pattern: str) -> None:
    """Drafts stay useful, and `block` never accepts fewer than `rejection`."""
    params = SamplingParams()
    guided, unguided = (
        GuidedPair(4, params, pattern=pattern, drafter_is_guided=knows) for knows in (True, False)
    )
    accepted = {rule: expected_accepted(guided, rule, PROMPT, 3) for rule in SAMPLED}
    for rule in SAMPLED:
        assert accepted[rule] > expected_accepted(unguided, rule, PROMPT, 3)
    assert accepted[Acceptance.BLOCK] >= accepted[Acceptance.REJECTION] - 1e-9


def test_the_law_would_show_a_drafter_of_other_numbers() -> None:
    """The comparison can fail: masked and free laws are far apart."""
    pair = GuidedPair(4, SamplingParams())
    free = ToyPair(4, SamplingParams()).target_law(PROMPT, 3)
    assert distance(free, pair.masked_law(3)) > 0.01
    assert torch.equal(pair.target_row(PROMPT), pair.target_row(PROMPT))
