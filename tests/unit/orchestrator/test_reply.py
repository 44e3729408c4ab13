"""Verdicts become tokens with text: each once, in order, with its own origin and logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import EOS_ID, build_byte_tokenizer

from orchestrator.relay import Relay
from orchestrator.relay_settings import RelaySettings
from orchestrator.reply import Reply
from orchestrator.request import GenerationRequest
from orchestrator.router import Router
from orchestrator.stop_strings import StopAutomaton
from paceline.generation import OutputToken, TopLogprob, Usage
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import SamplingParams
from paceline.types import FinishReason, Origin, PassTimings, TokenLogprobs, Verdict

TOKENIZER = Tokenizer(build_byte_tokenizer())
PROMPT = (104, 105)
SETTINGS = RelaySettings(
    speculation=True,
    window=8,
    num_speculative_tokens=4,
    draft_top_k=0,
    commit_credit=16,
    failover_timeout_s=0.0,
    reproducible=False,
)


def reply_to(*stops: str, include: bool = False, **settings: Any) -> Reply:
    plain = RelaySettings(**{**_fields(SETTINGS), **settings})
    automaton = StopAutomaton(stops) if stops else None
    request = GenerationRequest(PROMPT, SamplingParams(seed=77), automaton, include, plain, 1)
    return Reply(request, TOKENIZER)


def _fields(values: Any) -> dict[str, Any]:
    return {name: getattr(values, name) for name in type(values).__slots__}


def verdict(
    token_ids: Sequence[int],
    *,
    accepted: int | None = None,
    next_origin: Origin = Origin.BONUS,
    finish_reason: FinishReason | None = None,
    logprobs: Sequence[TokenLogprobs] = (),
    base: int = 0,
) -> Verdict:
    accepted = max(0, len(token_ids) - 1) if accepted is None else accepted
    return Verdict(
        session_id=1,
        epoch=0,
        base=base,
        token_ids=tuple(token_ids),
        accepted_length=accepted,
        next_origin=next_origin if accepted < len(token_ids) else None,
        num_judged=accepted,
        finish_reason=finish_reason,
        logprobs=tuple(logprobs),
        kv_length=0,
        timings=PassTimings(1000, 2000, 500, 5, 1),
        num_discarded=0,
    )


def text_of(tokens: Sequence[OutputToken]) -> str:
    return "".join(token.text for token in tokens)


def test_tokens_come_with_their_text_and_origin() -> None:
    reply = reply_to()
    first = reply.add(verdict(b"a", next_origin=Origin.PREFILL))
    second = reply.add(verdict(b"bcd", accepted=2, next_origin=Origin.RECOVERED))
    third = reply.add(verdict(b"ef", accepted=2))
    assert [(t.id, t.text, t.origin) for t in first + second + third] == [
        (97, "a", Origin.PREFILL),
        (98, "b", Origin.ACCEPTED),
        (99, "c", Origin.ACCEPTED),
        (100, "d", Origin.RECOVERED),
        (101, "e", Origin.ACCEPTED),
        (102, "f", Origin.ACCEPTED),
    ]
    assert reply.finish_reason is None
    assert reply.num_delivered == reply.num_taken == 6


def test_logprobs_stay_with_their_tokens_while_these_are_held() -> None:
    """B04: what a stop string may swallow is held, with all that belongs to it."""
    reply = reply_to("bcX")
    rows = [TokenLogprobs(-float(i), (97 + i, 32), (-float(i), -9.0)) for i in range(4)]
    held = reply.add(verdict(b"abc", logprobs=rows[:3]))
    assert [(t.id, t.logprob) for t in held] == [(97, 0.0)]
    assert (reply.num_delivered, reply.num_taken) == (1, 3)
    rest = reply.add(verdict(b"d", logprobs=rows[3:], next_origin=Origin.AUTOREGRESSIVE))
    assert [(t.id, t.logprob, t.origin) for t in rest] == [
        (98, -1.0, Origin.ACCEPTED),
        (99, -2.0, Origin.BONUS),
        (100, -3.0, Origin.AUTOREGRESSIVE),
    ]
    assert rest[0].top_logprobs == (TopLogprob(98, "b", -1.0), TopLogprob(32, " ", -9.0))
    assert reply.num_taken == 4


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("sizes", [[9], [1] * 9, [3, 3, 3], [2, 7], [5, 4]])
def test_a_stop_string_ends_the_text_wherever_verdicts_are_cut(
    sizes: list[int], include: bool
) -> None:
    """B04: no part of it is sent, whatever block it lies across."""
    reply = reply_to("\nUser:", include=include)
    output = list(b"ok\nUser:x")
    tokens: list[OutputToken] = []
    for size in sizes:
        assert reply.finish_reason is None
        tokens += reply.add(verdict(output[:size]))
        del output[:size]
        if reply.finish_reason is not None:
            break
    assert text_of(tokens) == ("ok\nUser:" if include else "ok")
    assert reply.finish_reason is FinishReason.STOP
    assert reply.num_delivered == len(tokens)
    assert len(tokens) == (8 if include else 2)


def test_text_that_only_began_a_stop_string_arrives_at_the_end() -> None:
    """B04: newline + `Usual`."""
    reply = reply_to("\nUser:")
    tokens = reply.add(verdict(b"ok\nUs"))
    tokens += reply.add(verdict(b"ual\nU", finish_reason=FinishReason.LENGTH))
    assert text_of(tokens) == "ok\nUsual\nU"
    assert reply.finish_reason is FinishReason.LENGTH
    assert reply.num_delivered == 10


def test_a_stop_string_completed_by_the_last_token_is_a_stop() -> None:
    reply = reply_to("c")
    tokens = reply.add(verdict(b"abc", finish_reason=FinishReason.LENGTH))
    assert text_of(tokens) == "ab"
    assert reply.finish_reason is FinishReason.STOP


def test_an_end_id_is_delivered_without_text() -> None:
    """B01."""
    reply = reply_to()
    tokens = reply.add(verdict([97, EOS_ID], finish_reason=FinishReason.STOP))
    assert [(t.id, t.text) for t in tokens] == [(97, "a"), (EOS_ID, "")]
    assert reply.finish_reason is FinishReason.STOP


def test_a_character_across_two_verdicts_comes_whole() -> None:
    """C04: streamed text = one full decode, also where max_tokens cuts inside an emoji."""
    output = list("a😀b".encode())
    reply = reply_to()
    tokens = reply.add(verdict(output[:3])) + reply.add(verdict(output[3:]))
    tokens += reply.add(verdict([], finish_reason=FinishReason.LENGTH))
    assert text_of(tokens) == "a😀b"
    assert [t.id for t in tokens] == output
    cut = reply_to()
    tokens = cut.add(verdict(output[:3], finish_reason=FinishReason.LENGTH))
    assert text_of(tokens) == TOKENIZER.decode(output[:3])
    assert cut.num_delivered == 3


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_token_is_delivered_once_with_its_own_details(data: st.DataObject) -> None:
    """K02: delivered ids = usage, whatever the stop strings hold back or cut."""
    stops = data.draw(st.sampled_from([(), ("ab",), ("bb", "ca")]))
    reply = reply_to(*stops)
    output = data.draw(st.lists(st.sampled_from(b"abc"), min_size=1, max_size=20))
    tokens: list[OutputToken] = []
    position = 0
    while position < len(output) and reply.finish_reason is None:
        size = data.draw(st.integers(1, 5))
        part = output[position : position + size]
        ends = position + size >= len(output)
        rows = [TokenLogprobs(-float(position + i)) for i in range(len(part))]
        tokens += reply.add(
            verdict(part, logprobs=rows, finish_reason=FinishReason.LENGTH if ends else None)
        )
        position += size
        assert reply.num_delivered == len(tokens)
        assert reply.num_taken <= min(position, len(output))
    assert [t.id for t in tokens] == output[: len(tokens)]
    assert [t.logprob for t in tokens] == [-float(i) for i in range(len(tokens))]
    full = bytes(output).decode()
    found = [full.find(stop) for stop in stops if stop in full]
    expected = full[: min(found)] if found else full
    assert text_of(tokens) == expected
    reason = FinishReason.STOP if found else FinishReason.LENGTH
    assert reply.finish_reason is reason
    relay = Relay(Router([], []), PROMPT, SamplingParams(seed=77), SETTINGS)
    assert reply.outcome(relay).usage == Usage(2, len(tokens))


def test_the_outcome_counts_what_the_relay_saw() -> None:
    relay = Relay(Router([], []), PROMPT, SamplingParams(seed=77), SETTINGS)
    relay.had_drafter = True
    relay.first_token_s = 0.25
    reply = reply_to()
    for part in (
        verdict(b"abc", base=2),
        verdict(b"d", base=5, finish_reason=FinishReason.LENGTH),
    ):
        relay.session.commit(part)
        reply.add(part)
    outcome = reply.outcome(relay)
    assert outcome.finish_reason is FinishReason.LENGTH
    assert outcome.usage == Usage(prompt_tokens=2, completion_tokens=4)
    stats = outcome.stats
    assert (stats.speculation, stats.seed) == ("on", 77)
    assert (stats.judged, stats.accepted, stats.passes) == (2, 2, 2)
    assert stats.mean_acceptance_length == 2.0
    assert (stats.verify_ms, stats.queue_ms) == (5.0, 2.0)
    assert stats.time_to_first_token_ms == 250.0
    assert stats.total_ms >= 0


@pytest.mark.parametrize(
    ("asked", "had_drafter", "expected"),
    [(True, True, "on"), (True, False, "unavailable"), (False, False, "off")],
)
def test_speculation_is_told_as_it_was(asked: bool, had_drafter: bool, expected: str) -> None:
    """H08: never silently without."""
    relay = Relay(Router([], []), PROMPT, SamplingParams(), SETTINGS)
    relay.had_drafter = had_drafter
    reply = reply_to(speculation=asked)
    reply.add(verdict(b"a", finish_reason=FinishReason.LENGTH))
    stats = reply.outcome(relay).stats
    assert stats.speculation == expected
    assert stats.mean_acceptance_length == 0.0


def test_the_prompts_logprobs_begin_with_its_second_id() -> None:
    reply = reply_to()
    ((token,),) = reply.prompt_tokens([TokenLogprobs(-1.5, (105,), (-1.5,))])
    assert (token.id, token.text, token.origin, token.logprob) == (105, "i", None, -1.5)
    assert reply.num_delivered == 0
    assert list(reply.prompt_tokens([])) == []
