"""Logging goes to stderr, at the level asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from paceline.logs import setup_logging


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
