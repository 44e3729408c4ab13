"""Work in a thread that ends with it, for what uses torch before the engine does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_short_thread(function: Callable[..., T], *arguments: object) -> T:
    """What `function` returns, or raises.

    OpenMP keeps a team of threads for every thread that ever computed, and once the teams together
    have more threads than there are CPUs it puts them to sleep between two products. The engine
    thread's passes then take 1.2 to 1.4 times as long (SmolLM2-135M on two cores), so nothing that
    has computed may live on beside it, as the threads of `asyncio.to_thread` would.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = function(*arguments), None
        except BaseException as caught:  # handed on to the caller
            result, error = None, caught
        loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    try:
        return await done
    finally:
        if done.done() and not done.cancelled():
            thread.join()
