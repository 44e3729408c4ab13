"""W3C trace context: what is valid, and that nothing is lost on the way to a worker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.telemetry.level import Level
from paceline.telemetry.trace_context import TraceContext, parse_context

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def test_the_specifications_example_is_read() -> None:
    context = parse_context({"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"})
    assert context == TraceContext(int(TRACE, 16), int(PARENT, 16), is_sampled=True, state="a=b")
    unsampled = parse_context({"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert unsampled is not None
    assert not unsampled.is_sampled


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}0-{PARENT}-01",
    ],
)
def test_a_malformed_header_is_no_context(header: str) -> None:
    assert parse_context({"traceparent": header}) is None


def test_a_later_version_with_more_fields_is_read_as_far_as_it_is_known() -> None:
    assert parse_context({"traceparent": f"01-{TRACE}-{PARENT}-03-more"}) is not None


def test_an_unknown_level_asks_for_nothing() -> None:
    carrier = {"traceparent": f"00-{TRACE}-{PARENT}-01", "paceline-level": "everything"}
    context = parse_context(carrier)
    assert context is not None
    assert context.level is Level.OFF


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    trace_id=st.integers(1, 2**128 - 1),
    parent_id=st.integers(1, 2**64 - 1),
    is_sampled=st.booleans(),
    level=st.sampled_from(Level),
    returns_spans=st.booleans(),
)
def test_a_context_survives_its_carrier(
    trace_id: int, parent_id: int, is_sampled: bool, level: Level, returns_spans: bool
) -> None:
    context = TraceContext(
        trace_id, parent_id, is_sampled, level=level, returns_spans=returns_spans
    )
    assert parse_context(context.carrier()) == context
