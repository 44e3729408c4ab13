"""A thread of its own for what computes before the engine."""

from __future__ import annotations

import threading

import pytest

from paceline.errors import ModelLoadError
from paceline.runtime.short_thread import in_short_thread


async def test_the_thread_has_ended_when_the_result_is_there() -> None:
    """Its OpenMP team would slow down the engine's."""
    thread = await in_short_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


async def test_arguments_go_in_and_errors_come_out() -> None:
    threads: list[threading.Thread] = []

    def fails(problem: str) -> None:
        threads.append(threading.current_thread())
        raise ModelLoadError(problem)

    with pytest.raises(ModelLoadError, match="no such file"):
        await in_short_thread(fails, "no such file")
    assert not threads[0].is_alive()
