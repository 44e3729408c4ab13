"""Hypothesis strategies for every value that crosses a link."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from paceline.generation import TraceSpan
from paceline.rpc.codec.blocks import MAX_EPOCH
from paceline.sampling.draft_probs import DraftProbs
from paceline.sampling.params import Acceptance, SamplingParams
from paceline.types import (
    Advance,
    CloseSession,
    Credit,
    DraftBlock,
    DrafterState,
    FinishReason,
    OpenSession,
    Origin,
    PassTimings,
    SessionError,
    SessionSpans,
    SetSpeculation,
    TokenLogprobs,
    Verdict,
    WorkerInfo,
)

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

session_ids = st.integers(0, UINT64_MAX)
epochs = st.integers(0, UINT64_MAX)
counts = st.integers(0, INT32_MAX)
micros = st.integers(0, UINT32_MAX)
valid_ids = st.integers(0, INT32_MAX)
# What is on the wire is an int32: ids out of any vocabulary are the engine's to refuse.
any_ids = st.integers(-(2**31), INT32_MAX)
texts = st.text(max_size=20)


def tuples(elements: st.SearchStrategy[Any], max_size: int = 6) -> st.SearchStrategy[Any]:
    return st.lists(elements, max_size=max_size).map(tuple)


def floats(low: float, high: float, width: Any = 64) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=width, allow_subnormal=False)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, INT32_MAX))
    bias_ids = draw(st.lists(valid_ids, max_size=4, unique=True))
    return SamplingParams(
        temperature=draw(floats(0, 10)),
        top_k=draw(counts),
        top_p=draw(floats(0.01, 1)),
        min_p=draw(floats(0, 1)),
        typical_p=draw(floats(0.01, 1)),
        repetition_penalty=draw(floats(0.01, 10)),
        presence_penalty=draw(floats(-2, 2)),
        frequency_penalty=draw(floats(-2, 2)),
        logit_bias=tuple((token_id, draw(floats(-100, 100, 32))) for token_id in bias_ids),
        allowed_token_ids=draw(tuples(valid_ids)),
        bad_words_token_ids=draw(tuples(st.lists(valid_ids, min_size=2, max_size=3).map(tuple), 3)),
        min_tokens=draw(st.integers(0, max_tokens)),
        max_tokens=max_tokens,
        stop_token_ids=draw(tuples(valid_ids)),
        ignore_eos=draw(st.booleans()),
        seed=draw(st.integers(0, UINT64_MAX)),
        logprobs=draw(st.none() | st.integers(0, 20)),
        acceptance=draw(st.sampled_from(Acceptance)),
    )


@st.composite
def draft_probs(draw: st.DrawFn, num_tokens: int) -> DraftProbs:
    width = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    probs = torch.from_numpy(rng.dirichlet(np.ones(width), num_tokens).astype(np.float32))
    if draw(st.booleans()):
        return DraftProbs(None, probs)
    ids = np.stack([rng.choice(2**31, width, replace=False) for _ in range(num_tokens)])
    return DraftProbs(torch.from_numpy(ids.astype(np.int64)), probs)


@st.composite
def draft_blocks(draw: st.DrawFn) -> DraftBlock:
    token_ids = draw(tuples(any_ids))
    with_probs = bool(token_ids) and draw(st.booleans())
    return DraftBlock(
        session_id=draw(session_ids),
        epoch=draw(st.integers(0, MAX_EPOCH)),
        base=draw(counts),
        token_ids=token_ids,
        draft_probs=draw(draft_probs(len(token_ids))) if with_probs else None,
        known_committed=draw(counts),
        state=draw(st.sampled_from(DrafterState)),
        kv_length=draw(counts),
        draft_us=draw(micros),
        parents=draw(tuples(any_ids)),
        copied=tuple(i for i in range(len(token_ids)) if draw(st.booleans())),
        outcome=draw(st.none() | any_ids),
    )


open_sessions = st.builds(
    OpenSession,
    session_id=session_ids,
    token_ids=tuples(any_ids),
    prompt_length=counts,
    sampling=sampling_params(),
    window=counts,
    num_speculative_tokens=counts,
    draft_top_k=counts,
    committed_limit=counts,
    speculation=st.booleans(),
    epoch=epochs,
    eos_token_ids=tuples(valid_ids),
    vocab_size=counts,
    cache_salt=texts,
    num_outcome_tokens=counts,
    trace_context=st.dictionaries(texts, texts, max_size=2),
)
advances = st.builds(
    Advance,
    session_id=session_ids,
    epoch=epochs,
    base=counts,
    token_ids=tuples(any_ids),
    window=st.none() | counts,
    num_speculative_tokens=st.none() | counts,
    draw_window=st.none() | counts,
    num_drawn_tokens=st.none() | counts,
    min_confidence=st.none() | st.floats(0, 1, width=32),
    min_copy_confidence=st.none() | st.floats(0, 1, width=32),
)
closes = st.builds(CloseSession, session_id=session_ids)
credits_ = st.builds(Credit, session_id=session_ids, committed_limit=counts)
set_speculations = st.builds(
    SetSpeculation,
    session_id=session_ids,
    enabled=st.booleans(),
    patience_us=st.none() | counts,
    max_drafts_per_pass=st.none() | counts.map(lambda count: count + 1),
)
session_errors = st.builds(SessionError, session_id=session_ids, code=texts, message=texts)
float32s = st.floats(width=32, allow_nan=False)
token_logprobs = st.builds(
    TokenLogprobs,
    logprob=float32s,
    top_token_ids=tuples(valid_ids, 3),
    top_logprobs=tuples(float32s, 3),
)
pass_timings = st.builds(
    PassTimings,
    queue_us=micros,
    forward_us=micros,
    judge_us=micros,
    rows=micros,
    sessions=micros,
)
verdicts = st.builds(
    Verdict,
    session_id=session_ids,
    epoch=epochs,
    base=counts,
    token_ids=tuples(any_ids),
    accepted_length=counts,
    next_origin=st.none() | st.sampled_from(Origin),
    num_judged=counts,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    logprobs=tuples(token_logprobs, 3),
    kv_length=counts,
    timings=pass_timings,
    num_discarded=micros,
    target_probs=tuples(float32s, 3),
    cached_prompt_tokens=counts,
)
trace_spans = st.builds(
    TraceSpan,
    name=texts,
    service=texts,
    trace_id=texts,
    span_id=texts,
    parent_id=texts,
    start_ns=st.integers(0, 2**63 - 1),
    end_ns=st.integers(0, 2**63 - 1),
    attributes=st.dictionaries(
        texts,
        st.one_of(
            texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)
        ),
        max_size=4,
    ),
)
session_spans = st.builds(
    SessionSpans, session_id=session_ids, spans=tuples(trace_spans, 3), is_last=st.booleans()
)
worker_infos = st.builds(
    WorkerInfo,
    kind=texts,
    model=texts,
    dtype=texts,
    quantization=texts,
    device=texts,
    vocab_size=counts,
    tokenizer_fingerprint=texts,
    context_length=counts,
    eos_token_ids=tuples(valid_ids),
    kv_page_size=counts,
    kv_pages_total=counts,
    kv_pages_used=counts,
    kv_pages_reserved=counts,
    live_sessions=counts,
    waiting_sessions=counts,
    peak_memory_bytes=st.integers(0, UINT64_MAX),
    counters=st.dictionaries(texts, st.integers(0, UINT64_MAX), max_size=3),
)

drafter_events = st.one_of(open_sessions, advances, closes)
drafter_replies = st.one_of(draft_blocks(), session_spans, session_errors)
verifier_events = st.one_of(open_sessions, draft_blocks(), credits_, set_speculations, closes)
verifier_replies = st.one_of(verdicts, session_spans, session_errors)
