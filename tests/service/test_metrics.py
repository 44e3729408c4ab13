"""What three running services export, scraped over HTTP, against what their requests say of
themselves, and against everything that reads it: dashboard, alerts, documentation."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.metrics import Scrape, receiving, scrape
from support.services import ROOT, Stack, running, settings, take, until

from paceline.client import GenerateResult
from paceline.config import parse_config
from paceline.errors import ConfigError, InvalidArgumentError
from verifier_service.service import start as start_verifier

MakeDir = Callable[..., Path]

PROMPT = [256, *b"once upon a time there was a fox"]
SERVICES = ("orchestrator", "verifier", "drafter")
KEYWORDS = {"le", "instance", "job"}
"""Labels that Prometheus and its histograms add."""


async def scrapes(stack: Stack) -> dict[str, Scrape]:
    services = (stack.orchestrator, stack.verifiers[0], stack.drafters[0])
    pages = await asyncio.gather(*(scrape(service.metrics_address) for service in services))
    return dict(zip(SERVICES, pages, strict=True))


@asynccontextmanager
async def observed(tiny_dir: MakeDir, **metrics: Any) -> AsyncIterator[Stack]:
    """The trio with unlike models, so that some drafts are rejected."""
    telemetry = {"metrics": {"listen": "127.0.0.1:0", **metrics}}
    document = settings(tiny_dir(seed=0), tiny_dir(seed=5), telemetry=telemetry)
    async with running(document) as stack:
        yield stack


async def generate(stack: Stack, **fields: Any) -> GenerateResult:
    return await stack.generate(token_ids=PROMPT, max_tokens=40, ignore_eos=True, **fields)


async def test_counts_are_what_the_requests_say_of_themselves(tiny_dir: MakeDir) -> None:
    async with observed(tiny_dir) as stack:
        results = await asyncio.gather(
            generate(stack, temperature=1.0),
            generate(stack, temperature=1.0, seed=3),
            generate(stack, temperature=0.0),
            generate(stack, speculation=False),
        )
        await until(stack.is_idle)
        pages = await scrapes(stack)
    orchestrator, verifier, drafter = (pages[name] for name in SERVICES)
    prefix = "paceline_orchestrator_"

    def summed(name: str) -> int:
        return sum(getattr(result.stats, name) for result in results)

    assert orchestrator.value(prefix + "requests_total", finish_reason="length") == 4
    assert orchestrator.total(prefix + "requests_total") == 4
    assert orchestrator.value(prefix + "prompt_tokens_total") == 4 * len(PROMPT)
    origins = [origin for result in results for origin in result.origins]
    for origin in ("prefill", "accepted", "recovered", "bonus", "autoregressive"):
        found = orchestrator.value(prefix + "completion_tokens_total", origin=origin)
        assert found == origins.count(origin), origin
    assert origins.count("accepted") > 0
    assert origins.count("recovered") > 0
    assert orchestrator.value(prefix + "draft_tokens_total") == summed("drafted") > 0
    assert orchestrator.value(prefix + "time_to_first_token_seconds_count") == 4
    first_s = orchestrator.value(prefix + "time_to_first_token_seconds_sum")
    assert first_s == pytest.approx(summed("time_to_first_token_ms") / 1e3)
    queue_s = orchestrator.value(prefix + "request_queue_seconds_sum")
    assert queue_s == pytest.approx(summed("queue_ms") / 1e3, abs=1e-4)
    assert orchestrator.value(prefix + "live_sessions") == 0
    for role in ("verifier", "drafter"):
        assert orchestrator.value(prefix + "connected_workers", role=role) == 1
        wire = [
            orchestrator.value(prefix + "wire_bytes_total", peer=role, direction=direction)
            for direction in ("sent", "received")
        ]
        # the closing of a session travels when its own count is told
        assert sum(wire) >= summed(f"bytes_{role}") > 0
        assert min(wire) > 0

    assert verifier.total("paceline_verifier_judged_tokens_total") == summed("judged")
    assert verifier.total("paceline_verifier_accepted_tokens_total") == summed("accepted")
    assert verifier.value("paceline_verifier_committed_tokens_total") == 4 * 40
    assert verifier.value("paceline_verifier_passes_total") == verifier.value(
        "paceline_verifier_pass_duration_seconds_count"
    )
    assert verifier.value("paceline_verifier_pass_sessions_sum") >= summed("passes")
    assert verifier.value("paceline_verifier_queue_seconds_total") == pytest.approx(queue_s)
    assert verifier.value("paceline_verifier_kv_total_pages") == 512
    assert verifier.value("paceline_verifier_kv_used_pages") == 0
    assert verifier.value("paceline_verifier_engine_busy_seconds_total") > 0
    prompt_tokens = verifier.value("paceline_verifier_prefix_computed_tokens_total")
    prompt_tokens += verifier.value("paceline_verifier_prefix_reused_tokens_total")
    assert prompt_tokens == 4 * len(PROMPT)

    # every draft token has one fate
    arrived = verifier.value("paceline_verifier_draft_tokens_total")
    discarded = verifier.total("paceline_verifier_discarded_tokens_total")
    assert arrived == summed("judged") + discarded
    dropped = orchestrator.value(prefix + "dropped_tokens_total")
    assert summed("drafted") == arrived + dropped
    assert drafter.value("paceline_drafter_draft_tokens_total") >= summed("drafted")


async def test_a_cancelled_and_a_refused_request_are_counted_as_such(tiny_dir: MakeDir) -> None:
    async with observed(tiny_dir) as stack:
        chunks = stack.client.generate(token_ids=PROMPT, max_tokens=400, ignore_eos=True)
        await take(chunks, 2)
        await chunks.aclose()
        with pytest.raises(InvalidArgumentError, match="max_tokens"):
            await stack.generate(token_ids=PROMPT, max_tokens=10_000)
        await until(stack.is_idle)
        page = (await scrapes(stack))["orchestrator"]
    requests = "paceline_orchestrator_requests_total"
    assert page.value(requests, finish_reason="cancelled") == page.total(requests) == 1
    refusals = "paceline_orchestrator_refused_requests_total"
    assert page.value(refusals, code="INVALID_ARGUMENT") == page.total(refusals) == 1
    duration = "paceline_orchestrator_request_duration_seconds_count"
    assert page.value(duration) == 1


# --- who reads them -------------------------------------------------------------------------------


def expressions() -> Iterable[tuple[str, str]]:
    """Every PromQL expression of the dashboard and the alerts, with its place."""
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/paceline.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


def used_metrics(expression: str) -> dict[str, set[str]]:
    """Metrics of an expression, with the labels in their selectors."""
    found: dict[str, set[str]] = {}
    for name, selector in re.findall(r"\b(paceline_\w+)(?:\{([^}]*)\})?", expression):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*[=!]", selector))
    return found


def grouped_labels(expression: str) -> set[str]:
    """Labels that an expression groups by."""
    groups = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


def legends() -> Iterable[tuple[str, str, set[str]]]:
    """Every expression whose legend or annotation names labels: place, expression, labels."""
    dashboard = json.loads((ROOT / "deploy/grafana/dashboards/paceline.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield f"panel {panel['title']}", target["expr"], labels
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            text = " ".join(rule["annotations"].values())
            yield f"alert {rule['alert']}", rule["expr"], set(re.findall(r"\$labels\.(\w+)", text))


@pytest.fixture(scope="module")
def exported(tiny_dir: MakeDir) -> Mapping[str, set[str]]:
    """The labels of everything that a running trio exports after a request."""

    async def run() -> dict[str, set[str]]:
        async with observed(tiny_dir) as stack:
            await generate(stack, temperature=1.0)
            pages = await scrapes(stack)
        return {name: labels for page in pages.values() for name, labels in page.names.items()}

    return asyncio.run(run())


def test_dashboard_and_alerts_use_only_what_is_exported(exported: Mapping[str, set[str]]) -> None:
    places = list(expressions())
    assert len(places) > 40
    for place, expression in places:
        used = used_metrics(expression)
        assert used or "up{" in expression, place
        for name, labels in used.items():
            assert name in exported, f"{place}: {name} is not exported"
            assert labels <= exported[name], f"{place}: {name} has no {labels - exported[name]}"
        known = set().union(KEYWORDS, *(exported[name] for name in used))
        assert grouped_labels(expression) <= known, place


def test_legends_and_annotations_name_labels_that_are_there(
    exported: Mapping[str, set[str]],
) -> None:
    for place, expression, labels in legends():
        grouped = grouped_labels(expression)
        own = set().union(*(exported[name] for name in used_metrics(expression)))
        aggregated = "sum" in expression
        known = grouped if aggregated else own | {"instance", "job"}
        assert labels <= known, f"{place}: {labels - known}"


def test_every_family_is_on_the_dashboard(exported: Mapping[str, set[str]]) -> None:
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported}
    shown = " ".join(expression for _, expression in expressions())
    assert {name for name in families if name.startswith("paceline_")} == {
        name for name in families if name in shown
    }


def test_every_metric_is_documented_and_nothing_else_is(exported: Mapping[str, set[str]]) -> None:
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported}
    text = (ROOT / "docs/operations.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `paceline_")]
    documented: dict[str, set[str]] = {}
    for row in rows:
        cells = row.split("|")
        for name in re.findall(r"`(paceline_\w+)`", cells[1]):
            # the table of both workers has no column of labels
            documented[name] = set(re.findall(r"`(\w+)`", cells[2])) if len(cells) == 5 else set()
    assert set(documented) == families
    for name, labels in documented.items():
        found = exported.get(name, exported.get(f"{name}_count", set()))
        assert labels == found, name


def test_every_alert_is_explained(exported: Mapping[str, set[str]]) -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    text = (ROOT / "docs/operations.md").read_text()
    assert names == set(re.findall(r"`(Paceline\w+)`", text))


# --- endpoints and collectors ---------------------------------------------------------------------


async def test_a_taken_port_fails_the_start_and_leaves_nothing_behind(tiny_dir: MakeDir) -> None:
    async with observed(tiny_dir) as stack:
        taken = stack.orchestrator.metrics_address
        document = settings(tiny_dir(seed=0), telemetry={"metrics": {"listen": taken}})
        config = parse_config(document, source="test")
        with pytest.raises(ConfigError, match=r"^telemetry\.metrics\.listen: cannot bind .*in use"):
            await start_verifier(config)


async def test_a_service_that_cannot_listen_ends_its_endpoint(tiny_dir: MakeDir) -> None:
    async with observed(tiny_dir) as stack:
        before = set(threading.enumerate())
        document = settings(
            tiny_dir(seed=0),
            verifier={"listen": stack.verifiers[0].address},
            telemetry={"metrics": {"listen": "127.0.0.1:0"}},
        )
        with pytest.raises(ConfigError, match="already in use"):
            await start_verifier(parse_config(document, source="test"))
        left = set(threading.enumerate()) - before
        assert "metrics" not in {thread.name for thread in left}


async def test_the_same_metrics_arrive_at_a_collector_by_otlp(tiny_dir: MakeDir) -> None:
    with receiving() as receiver:
        endpoint = f"http://{receiver.address}"
        async with observed(tiny_dir, otlp=True, endpoint=endpoint) as stack:
            result = await generate(stack, temperature=1.0)
        # each service sends once more when it stops
        verifier = receiver.last("paceline-verifier")
        orchestrator = receiver.last("paceline-orchestrator")
        assert "paceline.drafter.draft_tokens" in receiver.last("paceline-drafter")
    judged = verifier["paceline.verifier.judged_tokens"].sum
    assert judged.is_monotonic
    assert sum(point.as_int for point in judged.data_points) == result.stats.judged
    first = orchestrator["paceline.orchestrator.time_to_first_token"]
    assert first.unit == "s"
    (point,) = first.histogram.data_points
    assert (point.count, point.sum) == (
        1,
        pytest.approx(result.stats.time_to_first_token_ms / 1e3),
    )


# --- the log --------------------------------------------------------------------------------------


async def test_every_answer_is_one_line_without_its_text(
    tiny_dir: MakeDir, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with observed(tiny_dir) as stack:
        result = await stack.generate(prompt="a secret word", max_tokens=9, ignore_eos=True)
        async for _ in stack.client.generate(prompt="a secret word", max_tokens=3, n=2):
            pass
    ended = [r for r in caplog.records if r.message == "request ended"]
    assert len(ended) == 3
    assert len({record.fields["session"] for record in ended}) == 3  # type: ignore[attr-defined]
    first = ended[0].fields  # type: ignore[attr-defined]
    assert first["completion_tokens"] == 9
    assert (first["drafted"], first["passes"]) == (result.stats.drafted, result.stats.passes)
    assert first["peer"].startswith("ipv4:127.0.0.1:")
    everything = " ".join(f"{r.getMessage()} {getattr(r, 'fields', '')}" for r in caplog.records)
    assert "secret" not in everything
    assert result.text not in everything
