"""What a verifier offers to later sessions, and what it must not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from support.pipeline import reference
from test_verifier import draft
from verifier_harness import GREEDY, TARGET, VerifierBench, opening

from paceline.sampling.params import SamplingParams
from paceline.types import CloseSession, SessionError, Verdict

PROMPT = tuple(i * i % 11 for i in range(17))


def resting(bench: VerifierBench) -> int:
    bench.runner.pool.check_integrity()
    return bench.runner.pool.resting_pages


def first_verdict(bench: VerifierBench, session_id: int, prompt: Sequence[int]) -> Verdict:
    bench.post(opening(session_id, token_ids=tuple(prompt), speculation=False))
    for _ in range(20):
        for reply in bench.step():
            if reply.session_id == session_id:
                assert isinstance(reply, Verdict)
                return reply
    raise AssertionError("no verdict")


@pytest.mark.parametrize("fails_at", [5, 9, 17])
def test_a_failed_pass_leaves_nothing_that_is_found(fails_at: int) -> None:
    """D07: by then it has written tokens, and the next session computes them again; what passes
    before it had finished may stay."""
    failing = True

    def script(history: Sequence[int]) -> torch.Tensor:
        if failing and len(history) >= fails_at:
            raise RuntimeError("out of memory")
        return TARGET(history)

    bench = VerifierBench(script, max_batch_tokens=8)
    asking = SamplingParams(temperature=0, max_tokens=5, prompt_logprobs=0)  # of every row
    bench.post(opening(1, token_ids=PROMPT, sampling=asking))
    replies = [reply for _ in range(4) for reply in bench.step()]
    assert isinstance(replies[-1], SessionError)
    assert resting(bench) == (0 if fails_at < 9 else 2 if fails_at < 17 else 4)
    failing = False
    verdict = first_verdict(bench, 2, PROMPT)
    assert verdict.token_ids == tuple(reference(TARGET, PROMPT, 1))


def test_pages_of_a_model_whose_logits_are_nan_are_found_no_more() -> None:
    """The fault may lie in them; a request that bans all that it allows says nothing about them."""
    broken = False

    def script(history: Sequence[int]) -> torch.Tensor:
        return TARGET(history) * float("nan") if broken else TARGET(history)

    bench = VerifierBench(script)
    first_verdict(bench, 1, PROMPT)
    bench.post(CloseSession(1))
    assert resting(bench) == 4
    nothing_left = SamplingParams(
        max_tokens=4, allowed_token_ids=(3,), bad_words_token_ids=((3, 3),)
    )
    bench.post(opening(2, token_ids=PROMPT, sampling=nothing_left))
    (refused,) = bench.step()
    assert (refused.code, resting(bench)) == ("INVALID_ARGUMENT", 4)
    broken = True
    bench.post(opening(3, token_ids=PROMPT))
    (failed,) = bench.step()
    assert (failed.code, resting(bench)) == ("INTERNAL", 0)


def test_a_wrong_draft_that_filled_a_page_is_not_offered() -> None:
    """Only what is committed gets a key, however much was cached for a while."""
    bench = VerifierBench()
    bench.post(opening(1, token_ids=PROMPT[:6]))
    bench.step()
    bench.post(draft(bench, 1, 8, wrong_at=1))
    bench.step()
    session = bench.session()
    assert session.num_cached == len(session.tokens) - 1 == 8
    bench.post(CloseSession(1))
    assert resting(bench) == 2


def test_the_first_verdict_tells_what_was_cached_and_later_ones_do_not() -> None:
    bench = VerifierBench()
    assert first_verdict(bench, 1, PROMPT).cached_prompt_tokens == 0
    assert first_verdict(bench, 2, PROMPT).cached_prompt_tokens == 16
    later = bench.step()
    assert {reply.cached_prompt_tokens for reply in later} == {0}


def test_a_reopened_session_reuses_what_it_had_committed() -> None:
    """After a lost link the same verifier goes on without computing the answer again."""
    bench = VerifierBench()
    first_verdict(bench, 1, PROMPT)
    for _ in range(GREEDY.max_tokens - 1):
        bench.step()
    tokens = [*PROMPT, *reference(TARGET, PROMPT, 9)]
    bench.post(opening(2, token_ids=tuple(tokens), prompt_length=17, speculation=False))
    (verdict,) = bench.step()
    assert bench.session(2).num_reused == 24
    assert verdict.cached_prompt_tokens == 0, "the client has heard of its prompt before"
    assert verdict.token_ids == tuple(reference(TARGET, tokens, 1))
