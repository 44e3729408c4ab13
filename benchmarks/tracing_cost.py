"""What tracing costs: tokens per second of the emulated pair with tracing off, and at level token
with a collector that listens, one that is down, and one that never answers; side by side.

Every service is a process, as is the collector. It means something only on a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from paceline.bench.grid import Point
from paceline.bench.ideal import PROMPT_LENGTH, emulated_document
from paceline.bench.processes import ProcessGroup, start_services
from paceline.client import Client

BUDGET = 0.03
"""What level token may cost."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans and forgets them."""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        return trace_service_pb2.ExportTraceServiceResponse()


def collect() -> None:
    """Serve as a collector until standard input ends, after printing the port."""
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


@contextmanager
def endpoints() -> Iterator[dict[str, str | None]]:
    """Where each setting sends its spans; None is tracing off."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        subprocess.Popen(
            [sys.executable, __file__, "--collect"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as collector,
    ):
        assert collector.stdout is not None
        assert collector.stdin is not None
        with socket.create_server(("127.0.0.1", 0)) as closed:
            closed_port = closed.getsockname()[1]
        yield {
            "off": None,
            "collector": f"http://127.0.0.1:{collector.stdout.readline().strip()}",
            "closed port": f"http://127.0.0.1:{closed_port}",
            "black hole": f"http://127.0.0.1:{silent.getsockname()[1]}",
        }
        collector.stdin.close()


async def rate(client: Client, options: argparse.Namespace, repeat: int) -> float:
    """Tokens per second of all streams together."""

    async def stream(number: int) -> int:
        prompt = [(repeat * 17 + number * 5 + at) % 100 for at in range(PROMPT_LENGTH)]
        count = 0
        async for chunk in client.generate(
            token_ids=prompt,
            max_tokens=options.tokens,
            temperature=options.temperature,
            seed=number,
            window=options.window,
            num_speculative_tokens=options.block,
        ):
            count += len(chunk.tokens)
        return count

    started = time.perf_counter()
    counts = await asyncio.gather(*(stream(number) for number in range(options.streams)))
    return sum(counts) / (time.perf_counter() - started)


async def main(options: argparse.Namespace) -> None:
    """Interleaved repeats, so that a busy moment meets all settings alike."""
    rates: dict[str, list[float]] = {}
    costs = {"verify_ms": options.verify_ms, "draft_ms": options.draft_ms}
    document = emulated_document(Point(options.acceptance, 0.0, **costs), max_tokens=options.tokens)
    async with AsyncExitStack() as cleanup:
        group = await cleanup.enter_async_context(ProcessGroup())
        clients: dict[str, Client] = {}
        for name, endpoint in cleanup.enter_context(endpoints()).items():
            level = "off" if endpoint is None else "token"
            traces = {"level": level, "endpoint": endpoint}
            services = await start_services(group, {**document, "telemetry": {"traces": traces}})
            clients[name] = await cleanup.enter_async_context(services.client)
        for repeat in range(options.repeats + 1):
            for name, client in clients.items():
                measured = await rate(client, options, repeat)
                if repeat:  # the first one warms up
                    rates.setdefault(name, []).append(measured)
    plain = statistics.median(rates["off"])
    print("| tracing | tokens/s | cost |")
    print("|---|---|---|")
    for name, found in rates.items():
        # of pairs measured one after the other: what a machine does meanwhile cancels out
        pairs = zip(rates["off"], found, strict=True)
        cost = statistics.median(1 - with_spans / without for without, with_spans in pairs)
        verdict = "" if cost <= BUDGET else f" (above {BUDGET:.0%})"
        print(f"| {name} | {statistics.median(found):.1f} | {cost:+.1%}{verdict} |")
    print(f"\nmedians of {options.repeats}; {options.streams} streams, off {plain:.1f} tokens/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--verify-ms", type=float, default=30.0)
    parser.add_argument("--draft-ms", type=float, default=3.0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--window", type=int, default=12)
    parser.add_argument("--block", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.collect:
        collect()
    else:
        asyncio.run(main(arguments))
