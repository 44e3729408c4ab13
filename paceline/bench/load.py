"""Many requests: an open loop, whose arrivals wait for no answer, or a closed loop of clients."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from paceline.bench.arrivals import poisson_arrivals
from paceline.bench.machine import Machine
from paceline.bench.progress import progress
from paceline.bench.prompts import BenchPrompt
from paceline.bench.report import Chart, Report, Row, Series, Table
from paceline.bench.summary import (
    RequestTimes,
    ServiceLevel,
    errors_of,
    num_good,
    percentiles,
)
from paceline.client import Client
from paceline.errors import PacelineError

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The loads, one after the other. Rates are requests a second; clients are closed loops."""

    rates: Sequence[float] = ()
    clients: Sequence[int] = ()
    num_requests: int = 64
    """Of each load."""
    max_tokens: int = 64
    temperature: float = 0.0
    ignore_eos: bool = True
    speculation: bool = True
    level: ServiceLevel = field(default_factory=ServiceLevel)
    seed: int = 0
    repeat_prompts: bool = False
    """Whether requests repeat the very same prompts."""

    def loads(self) -> list[tuple[str, float]]:
        """(`open` or `closed`, rate or number of clients)."""
        rates = [("open", float(rate)) for rate in self.rates]
        return rates + [("closed", float(clients)) for clients in self.clients]


async def run_load(
    client: Client,
    prompts: Sequence[BenchPrompt],
    options: LoadOptions,
    *,
    server: Any,
    machine: Machine,
) -> Report:
    """Put every load on a server. `server` describes it in the report.

    Raises `PacelineError` if it cannot be reached at all; a failed request is counted.
    """
    status = await client.status()
    await _warm_up(client, prompts[0])
    requests = _Requests(client, prompts, options)
    rows: list[Row] = []
    with progress("load", len(options.loads()) * options.num_requests) as advance:
        for kind, amount in options.loads():
            load = f"{amount:g}/s" if kind == "open" else f"{amount:g} clients"
            drive = _open_loop if kind == "open" else _closed_loop
            times = await drive(requests, amount, options, partial(advance, load))
            rows.append({"load": load, **_figures(kind, amount, times, options)})
    configuration = {
        **asdict(options),
        "prompts": [prompt.fields(options.max_tokens) for prompt in prompts],
        "services": server,
        "model": status.model,
        "workers": [f"{worker.role} {worker.address}" for worker in status.workers],
    }
    return Report("load", machine, configuration, rows, {}, _tables(rows), _charts(rows, options))


async def _warm_up(client: Client, prompt: BenchPrompt) -> None:
    fields = prompt.fields(WARM_UP_TOKENS)
    fields["temperature"] = 0.0
    async for _ in client.generate(**fields):
        pass


class _Requests:
    """Sends requests, each with a prompt of its own."""

    def __init__(
        self, client: Client, prompts: Sequence[BenchPrompt], options: LoadOptions
    ) -> None:
        self._client = client
        self._options = options
        self._prompts = itertools.cycle(prompts)
        self._marks = itertools.count(1)

    async def send(self, due_s: float) -> RequestTimes:
        """One request to its end; times on the clock of `time.perf_counter`."""
        options = self._options
        prompt, mark = next(self._prompts), next(self._marks)
        if not options.repeat_prompts:
            prompt = prompt.unique(mark)
        fields = prompt.fields(options.max_tokens)
        fields["temperature"] = options.temperature
        fields["ignore_eos"] = options.ignore_eos
        fields["speculation"] = options.speculation
        if options.temperature:
            fields["seed"] = options.seed + mark
        token_s: list[float] = []
        error = ""
        try:
            async for chunk in self._client.generate(**fields):
                token_s += [time.perf_counter()] * len(chunk.tokens)
        except PacelineError as failure:
            error = failure.code
        return RequestTimes(due_s, time.perf_counter(), tuple(token_s), error)


async def _open_loop(
    requests: _Requests, rate: float, options: LoadOptions, advance: Callable[[], None]
) -> list[RequestTimes]:
    async def one(due_s: float) -> RequestTimes:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        times = await requests.send(due_s)
        advance()
        return times

    started = time.perf_counter()
    arrivals = poisson_arrivals(rate, options.num_requests, seed=options.seed)
    return await asyncio.gather(*(one(started + arrival) for arrival in arrivals))


async def _closed_loop(
    requests: _Requests, clients: float, options: LoadOptions, advance: Callable[[], None]
) -> list[RequestTimes]:
    left = iter(range(options.num_requests))
    found: list[RequestTimes] = []

    async def one_client() -> None:
        for _ in left:
            found.append(await requests.send(time.perf_counter()))
            advance()

    await asyncio.gather(*(one_client() for _ in range(int(clients))))
    return found


def _figures(
    kind: str, amount: float, times: Sequence[RequestTimes], options: LoadOptions
) -> dict[str, Any]:
    """One row. Times count from when a request was due, not from when it was sent."""
    done = [request for request in times if not request.error]
    seconds = max(request.ended_s for request in times) - min(request.due_s for request in times)
    good = num_good(times, options.level)
    return {
        "kind": kind,
        "amount": amount,
        "requests": len(times),
        "completed": len(done),
        "errors": errors_of(times),
        "seconds": seconds,
        "requests_per_s": len(done) / seconds,
        "tokens_per_s": sum(len(request.token_s) for request in times) / seconds,
        "goodput_per_s": good / seconds,
        "good_share": good / len(times),
        **_named("ttft_ms", [request.ttft_s for request in done if request.token_s]),
        **_named("itl_ms", [gap for request in done for gap in request.gaps_s]),
        **_named("tpot_ms", [request.per_token_s for request in done if request.token_s]),
        **_named("latency_ms", [request.ended_s - request.due_s for request in done]),
    }


def _named(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{name}_{key}": value * 1e3 for key, value in percentiles(seconds).items()}


def _tables(rows: Sequence[Row]) -> list[Table]:
    shown = [
        {**row, "errors": ", ".join(f"{k} {n}" for k, n in row["errors"].items())} for row in rows
    ]
    overall = [
        ("load", "load", ""),
        ("requests", "requests", "d"),
        ("completed", "completed", "d"),
        ("errors", "errors", ""),
        ("requests/s", "requests_per_s", ".2f"),
        ("tokens/s", "tokens_per_s", ".1f"),
        ("goodput /s", "goodput_per_s", ".2f"),
        ("good", "good_share", ".0%"),
    ]
    latency = [("load", "load", "")]
    for name, heading in (("ttft_ms", "first token"), ("itl_ms", "token"), ("tpot_ms", "mean")):
        latency += [(f"{heading} {p}", f"{name}_{p}", ".1f") for p in ("p50", "p95", "p99")]
    return [Table("Throughput", overall, shown), Table("Latency in ms", latency, shown)]


def _charts(rows: Sequence[Row], options: LoadOptions) -> list[Chart]:
    charts = []
    for kind, x_label in (("open", "arrivals (requests/s)"), ("closed", "clients")):
        of_kind = [row for row in rows if row["kind"] == kind]
        xs = [row["amount"] for row in of_kind]
        for name, title, limit_s in (
            ("ttft_ms", "Time to first token", options.level.ttft_s),
            ("itl_ms", "Inter-token latency", options.level.itl_s),
        ):
            series = [
                Series(p, xs, [row[f"{name}_{p}"] for row in of_kind])
                for p in ("p50", "p95", "p99")
            ]
            guide = None if limit_s is None else limit_s * 1e3
            file = f"{kind}-{name.removesuffix('_ms')}"
            charts.append(Chart(file, title, x_label, f"{title.lower()} (ms)", series, guide))
        rates = [
            Series("throughput", xs, [row["requests_per_s"] for row in of_kind]),
            Series("goodput", xs, [row["goodput_per_s"] for row in of_kind]),
        ]
        charts.append(Chart(f"{kind}-goodput", "Goodput", x_label, "requests/s", rates))
    return [chart for chart in charts if chart.series[0].xs]
