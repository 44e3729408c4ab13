"""What a relayed round costs with nothing to do: the floor under the overhead that a sweep tells.

Two workers and a relay as processes of their own. A message goes from the first worker through the
relay to the second and back; each worker's engine thread sleeps its emulated time and passes it
on as it is, without protobuf, sessions, or a model. Measured is how much longer a round takes than
both times together, over `grpc.aio` streams as in Paceline, and over plain asyncio sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import queue
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio

from paceline.runtime.emulated import sleep_until

MESSAGE = b"x" * 60
METHOD = "/floor.Worker/Link"
WARM_UP_ROUNDS = 10

Relay = Callable[[list[int], int], Awaitable[list[float]]]
Worker = Callable[[Connection, float], Awaitable[None]]


class Engine:
    """A thread that holds each message for as long as a pass takes, and hands it to the loop."""

    def __init__(self, seconds: float, deliver: Callable[[bytes], object]) -> None:
        self._seconds = seconds
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.post = self._inbox.put
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (message := self._inbox.get()) is not None:
            sleep_until(time.perf_counter() + self._seconds)
            self._loop.call_soon_threadsafe(self._deliver, message)


# --- gRPC -----------------------------------------------------------------------------------------


async def grpc_worker(parent: Connection, seconds: float) -> None:
    async def link(requests: AsyncIterator[bytes], context: Any) -> None:
        outbox: asyncio.Queue[bytes] = asyncio.Queue()
        engine = Engine(seconds, outbox.put_nowait)

        async def write() -> None:
            while True:
                await context.write(await outbox.get())

        writing = asyncio.create_task(write())
        async for message in requests:
            engine.post(message)
        engine.post(None)
        writing.cancel()

    handlers = {"Link": grpc.stream_stream_rpc_method_handler(link)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("floor.Worker", handlers),)
    )
    parent.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


async def grpc_relay(ports: list[int], rounds: int) -> list[float]:
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}") for port in ports]
    first, second = (channel.stream_stream(METHOD)() for channel in channels)
    await first.write(MESSAGE)
    times = []
    for _ in range(rounds):
        message = await first.read()
        times.append(time.perf_counter())
        await second.write(message)
        await first.write(await second.read())
    for channel in channels:
        await channel.close()
    return times


# --- sockets --------------------------------------------------------------------------------------


async def socket_worker(parent: Connection, seconds: float) -> None:
    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine = Engine(seconds, writer.write)
        try:
            while True:
                engine.post(await reader.readexactly(len(MESSAGE)))
        except asyncio.IncompleteReadError:
            engine.post(None)

    server = await asyncio.start_server(link, "127.0.0.1", 0)
    parent.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def socket_relay(ports: list[int], rounds: int) -> list[float]:
    ends = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
    (from_first, to_first), (from_second, to_second) = ends
    to_first.write(MESSAGE)
    times = []
    for _ in range(rounds):
        message = await from_first.readexactly(len(MESSAGE))
        times.append(time.perf_counter())
        to_second.write(message)
        to_first.write(await from_second.readexactly(len(MESSAGE)))
    for _, writer in ends:
        writer.close()
    return times


# --- measuring ------------------------------------------------------------------------------------

TRANSPORTS: dict[str, tuple[Worker, Relay]] = {
    "grpc.aio": (grpc_worker, grpc_relay),
    "asyncio sockets": (socket_worker, socket_relay),
}


def serve(transport: str, parent: Connection, seconds: float) -> None:
    """A worker's process, until it is ended."""
    asyncio.run(TRANSPORTS[transport][0](parent, seconds))  # type: ignore[arg-type]


def measure(transport: str, times_s: tuple[float, float], rounds: int) -> list[float]:
    """Seconds that each round took beyond both workers' times."""
    context = multiprocessing.get_context("spawn")
    workers, ports = [], []
    try:
        for seconds in times_s:
            ours, theirs = context.Pipe()
            worker = context.Process(target=serve, args=(transport, theirs, seconds), daemon=True)
            worker.start()
            workers.append(worker)
            ports.append(ours.recv())
        at = asyncio.run(TRANSPORTS[transport][1](ports, rounds + WARM_UP_ROUNDS))  # type: ignore[arg-type]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    measured = at[WARM_UP_ROUNDS - 1 :]
    return [end - start - sum(times_s) for start, end in pairwise(measured)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verify-ms", type=float, default=30.0)
    parser.add_argument("--draft-ms", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    times_s = (options.verify_ms / 1e3, options.draft_ms / 1e3)
    print("| transport | overhead ms p50, by repeat | p90 |\n|---|---|---|")
    found: dict[str, list[list[float]]] = {name: [] for name in TRANSPORTS}
    for _ in range(options.repeats):  # in turn, so that a slow minute favours none
        for name, runs in found.items():
            runs.append(measure(name, times_s, options.rounds))
    for name, runs in found.items():
        medians = ", ".join(f"{statistics.median(run) * 1e3:.2f}" for run in runs)
        p90 = statistics.median(statistics.quantiles(run, n=10)[-1] for run in runs)
        print(f"| {name} | {medians} | {p90 * 1e3:.2f} |")


if __name__ == "__main__":
    main()
