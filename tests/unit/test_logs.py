"""Logging goes to stderr, at the level asked for."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.logs import context_fields, fields, session_fields, set_context, setup_logging

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(autouse=True)
def _root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # `force` would close the handlers of the test runner.
    root.handlers[:] = []
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_records_of_the_level_and_above_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("warning")
    setup_logging("warning")
    logging.getLogger("paceline.test").info("quiet")
    logging.getLogger("paceline.test").warning("loud")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("loud") == 1
    assert "WARNING paceline.test: loud" in captured.err
    assert "quiet" not in captured.err


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        setup_logging("chatty")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_is_one_object_a_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", "json")
    logger = logging.getLogger("paceline.test")
    logger.info('two\nlines, "%s" and %d', "é", 7)
    try:
        raise ValueError("of a\nfault")
    except ValueError:
        logger.exception("it failed")
    first, second = lines(capsys)
    assert first.pop("time").startswith("20")
    assert first == {
        "level": "INFO",
        "logger": "paceline.test",
        "message": 'two\nlines, "é" and 7',
    }
    assert "ValueError: of a\nfault" in second["exc_info"]


def test_fields_stand_on_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    extra = fields(tokens=3, peer="a b", error=None, level="none", empty="")
    for log_format in ("json", "text"):
        setup_logging("info", log_format)  # type: ignore[arg-type]
        logging.getLogger("paceline.test").info("done", extra=extra)
    as_json, as_text = capsys.readouterr().err.splitlines()
    found = json.loads(as_json)
    assert (found["tokens"], found["peer"], found["level"]) == (3, "a b", "INFO")
    assert "error" not in found
    assert as_text.endswith('INFO    paceline.test: done tokens=3 peer="a b" level=none empty=""')


async def test_lines_of_a_task_say_what_they_belong_to(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", "json")
    logger = logging.getLogger("paceline.test")

    async def work(session: str, trace_id: str) -> dict[str, Any]:
        set_context(session=session, trace_id=trace_id)
        await asyncio.sleep(0)
        logger.info("inside")
        return context_fields()

    about, _ = await asyncio.gather(work("a", TRACE), work("b", ""))
    logger.info("outside")
    logger.info("about", extra=about)
    first, second, third, fourth = lines(capsys)
    assert (first["session"], first["trace_id"]) == ("a", TRACE)
    assert second["session"] == "b"
    assert "trace_id" not in second
    assert "session" not in third
    assert (fourth["session"], fourth["trace_id"]) == ("a", TRACE)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}, {"session": 7, "trace_id": TRACE}),
        ({"traceparent": "nonsense"}, {"session": 7}),
        ({}, {"session": 7}),
    ],
)
def test_a_worker_names_a_session_and_the_trace_that_it_was_opened_in(
    context: dict[str, str], expected: dict[str, Any]
) -> None:
    assert session_fields(7, context) == {"fields": expected}
