"""`paceline bench` against real services, with tiny models, little cost and few tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.bench import MACHINE, deploy_here
from support.services import model_section, running, scripted, settings, until

from paceline.bench import scenarios, sweep_report
from paceline.bench.compare import CompareOptions, run_compare
from paceline.bench.grid import Point
from paceline.bench.latency import LatencyOptions, PairOptions, run_latency
from paceline.bench.load import LoadOptions, run_load
from paceline.bench.prompts import BenchPrompt, load_prompts
from paceline.bench.report import SCHEMA_FILE, Report
from paceline.bench.summary import ServiceLevel
from paceline.bench.sweep import SweepOptions, measure_point
from paceline.bench.sweep_report import run_sweep
from paceline.client import Client
from paceline.errors import PacelineError, UnavailableError
from paceline.runtime.scripted import ScriptedRunner, hashed_script

MakeDir = Callable[..., Path]
FAST = Point(0.8, verify_ms=3.0, draft_ms=0.3)
PROMPTS = [
    BenchPrompt("text", prompt="Once upon a time"),
    BenchPrompt("chat", messages=({"role": "user", "content": "hello"},), max_tokens=6),
]


def checked(report: Report) -> dict[str, Any]:
    """Its JSON, which its schema admits."""
    value = report.as_json()
    jsonschema.validate(value, json.loads(SCHEMA_FILE.read_text()))
    assert report.as_markdown().startswith(f"# paceline bench {report.benchmark}\n")
    return value


async def test_a_point_is_measured_under_every_setting() -> None:
    options = SweepOptions(gammas=(2, 4), max_tokens=24, repeats=2)
    rows = await measure_point(FAST, options, deploy=deploy_here)
    by_setting = {(row["setting"], row["block"]): row for row in rows}
    assert {kind for kind, _ in by_setting} == {"plain", "adaptive", "fixed", "stop-and-wait"}
    plain = by_setting["plain", 0]
    assert plain["speedup"] == 1.0
    assert plain["mean_acceptance_length"] == 1.0
    assert plain["rounds"] == 2 * 23
    assert plain["ideal_tokens_per_s"] == pytest.approx(1000 / 3.0, rel=1e-6)
    for row in rows:
        # software takes time: nothing is faster than the ideal, and a device is not more than busy
        assert row["verifier_busy_share"] <= 1.0
        if row["setting"] != "adaptive":
            assert 0.0 < row["measured_over_ideal"] <= 1.0
            assert row["overhead_ms_p50"] <= row["overhead_ms_p99"]
    fixed = by_setting["fixed", 4]
    assert fixed["mean_acceptance_length"] > 1.5
    assert 0 < fixed["bytes_per_draft_token"] < 100
    assert by_setting["adaptive", 0]["over_best_fixed"] > 0


async def test_an_emulated_device_tells_how_busy_it_was() -> None:
    document = settings(
        verifier={"model": {"kind": "synthetic", "base_ms": 4.0}},
        drafter={"kind": "model", "model": {"kind": "synthetic", "base_ms": 1.0}},
    )
    async with running(document) as stack:
        before = (await stack.info("verifier")).counters
        result = await stack.generate(token_ids=[1, 2], max_tokens=10, temperature=0)
        after = (await stack.info("verifier")).counters
        drafter = (await stack.info("drafter")).counters
    assert before["device_busy_us"] == 0
    passes = after["device_passes"]
    assert passes == after["passes"] == result.stats.passes
    assert 4000 * passes <= after["device_busy_us"] <= 1000 * result.stats.verify_ms
    assert after["device_late_us"] == pytest.approx(after["device_busy_us"] - 4000 * passes, abs=1)
    assert drafter["device_passes"] >= drafter["steps"] > 0


async def test_recovery_is_measured_for_every_jump() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenarios, "WINDOW_TOKENS", 10)
        rows = await scenarios.recover(repeats=1, phase_tokens=40, seed=0, deploy=deploy_here)
    assert [(row["acceptance_before"], row["acceptance"]) for row in rows] == [
        (0.9, 0.2),
        (0.2, 0.9),
    ]
    assert all(len(row["curve"]) == 6 for row in rows)


async def test_a_context_is_as_many_pages_as_its_tokens_need() -> None:
    rows = await scenarios.context(
        lengths=(20, 300), max_tokens=20, repeats=1, seed=0, deploy=deploy_here
    )
    for row in rows:
        assert row["kv_pages_least"] <= row["kv_pages"] <= row["kv_pages_most"]
        assert row["kv_pages_after"] == 0
    assert [row["kv_pages_most"] for row in rows] == [3, 20]
    assert rows[0]["over_shortest"] == 1.0


async def test_the_wire_is_measured_by_acceptance_rule() -> None:
    rows = await scenarios.wire(max_tokens=60, seed=0, deploy=deploy_here)
    by_rule = {row["rule"]: row["bytes_per_draft_token"] for row in rows}
    assert set(by_rule) == {"greedy", "coupled", "sparse"}
    assert by_rule["sparse"] > 3 * max(by_rule["greedy"], by_rule["coupled"]) > 0


async def test_a_sweep_runs_its_services_as_processes_and_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From processes to report; the second time nothing is left to do."""
    options = SweepOptions(gammas=(3,), max_tokens=12, repeats=1)
    results = tmp_path / "results.jsonl"

    async def sweep() -> dict[str, Any]:
        report = await run_sweep([FAST], options, parts=("grid",), results=results, machine=MACHINE)
        return checked(report)

    first = await sweep()
    assert {row["setting"] for row in first["results"]} >= {"plain", "adaptive", "fixed"}
    assert first["summary"]["worst measured / ideal"] > 0

    async def measured_again(*_arguments: Any) -> None:
        raise AssertionError("the point was measured already")

    monkeypatch.setattr(sweep_report, "measure_point", measured_again)
    second = await sweep()
    assert second["results"] == first["results"]


# --- load -----------------------------------------------------------------------------------


def runners() -> tuple[ScriptedRunner, ScriptedRunner]:
    target, draft = (ScriptedRunner(hashed_script(258), vocab_size=258) for _ in range(2))
    return target, draft


async def test_a_load_is_driven_in_open_and_closed_loop(byte_tokenizer_dir: Path) -> None:
    options = LoadOptions(
        rates=(200.0,),
        clients=(1, 4),
        num_requests=12,
        max_tokens=6,
        level=ServiceLevel(ttft_s=60.0, itl_s=60.0),
    )
    target, draft = runners()
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        report = await run_load(
            stack.client, PROMPTS, options, server={"address": "here"}, machine=MACHINE
        )
        await until(stack.is_idle)
    value = checked(report)
    assert [row["load"] for row in value["results"]] == ["200/s", "1 clients", "4 clients"]
    for row in value["results"]:
        assert row["completed"] == row["requests"] == 12
        assert row["errors"] == {}
        assert row["tokens_per_s"] == pytest.approx(72 / row["seconds"])
        assert row["good_share"] == pytest.approx(1.0)
        assert 0 < row["ttft_ms_p50"] <= row["ttft_ms_p99"] <= row["latency_ms_p99"]
    assert {chart.name for chart in report.charts} >= {"open-ttft", "closed-itl", "closed-goodput"}


async def test_failed_requests_are_counted_by_status(byte_tokenizer_dir: Path) -> None:
    """One session at a time: of many at once, all but one are refused."""
    options = LoadOptions(clients=(6,), num_requests=6, max_tokens=40)
    target, draft = runners()
    async with scripted(
        target, draft, tokenizer=byte_tokenizer_dir, orchestrator={"max_sessions": 1}
    ) as stack:
        report = await run_load(stack.client, PROMPTS[:1], options, server={}, machine=MACHINE)
    (row,) = checked(report)["results"]
    refused = row["errors"]["RESOURCE_EXHAUSTED"]
    assert refused >= 1
    assert row["completed"] + refused == 6
    assert row["good_share"] == pytest.approx(row["completed"] / 6)


async def test_every_request_of_a_load_begins_otherwise(byte_tokenizer_dir: Path) -> None:
    target, draft = runners()
    async with scripted(target, draft, tokenizer=byte_tokenizer_dir) as stack:
        asked: list[Any] = []
        send = stack.client.generate
        stack.client.generate = lambda **fields: (asked.append(fields["prompt"]), send(**fields))[1]  # type: ignore[method-assign,assignment,misc]
        options = LoadOptions(clients=(2,), num_requests=6, max_tokens=4)
        await run_load(stack.client, PROMPTS[:1], options, server={}, machine=MACHINE)
    assert len({prompt[:3] for prompt in asked[1:]}) == 6


async def test_a_load_without_a_server_fails_at_once() -> None:
    options = LoadOptions(clients=(1,))
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await run_load(client, PROMPTS, options, server={}, machine=MACHINE)


# --- pretrained pairs -----------------------------------------------------------------------


def tiny_pair(make: MakeDir, drafter: str) -> PairOptions:
    target, draft = (str(make(seed=seed, vocab_size=258)) for seed in (0, 1))
    return PairOptions(target, drafter, draft, dtype="float32", device="cpu", threads=1)


async def test_latency_is_measured_both_ways_with_likelihood_and_memory(
    tiny_dir: MakeDir,
) -> None:
    options = LatencyOptions(tiny_pair(tiny_dir, "ngram"), max_tokens=10, repeats=2)
    report = await run_latency(PROMPTS, options, machine=MACHINE, deploy=deploy_here)
    rows = checked(report)["results"]
    assert [(row["prompt"], row["speculation"]) for row in rows] == [
        (name, mode) for mode in (False, True) for name in ("text", "chat", "all")
    ]
    plain, drafted = rows[:3], rows[3:]
    for before, after in zip(plain, drafted, strict=True):
        assert after["tokens"] == before["tokens"]
        # in fp32 the outputs are the same, and so is what the target thinks of them
        assert after["mean_logprob"] == pytest.approx(before["mean_logprob"], abs=1e-5)
        assert before["mean_logprob"] < 0
        assert before["acceptance_rate"] is None
    assert [row["tokens"] for row in plain] == [10, 6, 16]
    assert drafted[-1]["same_outputs"] == drafted[-1]["outputs"] == 4
    assert plain[-1]["tokens_per_s"] == pytest.approx(16 / (2 * plain[-1]["latency_s"]))


async def test_quantizations_are_deployments_of_their_own(tiny_dir: MakeDir) -> None:
    for drafter, expected in (
        ("ngram", [("none", "none"), ("nf4", "none")]),
        ("model", [("none", "int8"), ("none", "nf4"), ("nf4", "int8"), ("nf4", "nf4")]),
        ("cascade", [("none", "int8"), ("none", "nf4"), ("nf4", "int8"), ("nf4", "nf4")]),
    ):
        options = LatencyOptions(tiny_pair(tiny_dir, drafter), ("none", "nf4"), ("int8", "nf4"))
        assert options.deployments() == expected
    document = options.pair.document("nf4", "int8")
    assert document["verifier"]["model"]["quantization"] == "nf4"
    assert document["drafter"]["model"]["quantization"] == "int8"
    assert document["drafter"]["model"]["path"] != document["verifier"]["model"]["path"]


async def test_paceline_is_compared_with_transformers_in_one_run(
    tiny_dir: MakeDir, tmp_path: Path
) -> None:
    """Every system, each in its process, says the same in fp32."""
    options = CompareOptions(
        tiny_pair(tiny_dir, "model"), draft_quantization="none", max_tokens=12, repeats=1, streams=3
    )
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "Once upon a time"}\n{"prompt": "abcabcabcabcabc"}\n')
    report = await run_compare({"mine": load_prompts(path)}, options, machine=MACHINE)
    rows = checked(report)["results"]
    by_system = {row["system"]: row for row in rows if row["suite"] == "mine"}
    assert set(by_system) == {
        "transformers generate",
        "transformers assisted",
        "transformers prompt lookup",
        "paceline",
        "paceline ngram",
        "paceline model",
    }
    assert all(row["same_outputs"] == 1.0 for row in by_system.values())
    assert by_system["transformers generate"]["over_generate"] == 1.0
    assert [row["streams"] for row in rows if row["suite"] == "streams"] == [1, 3]
    assert set(report.summary) == {
        "mine: paceline / generate",
        "mine: ngram / prompt lookup",
        "mine: ngram / paceline",
        "mine: model / assisted",
        "3 streams / one",
    }


async def test_a_model_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    pair = PairOptions(str(tmp_path / "none"), "model")
    with pytest.raises(PacelineError, match=r"model\.path: .*none does not exist"):
        await run_compare({"a": PROMPTS}, CompareOptions(pair), machine=MACHINE)


def test_sections_of_a_pair_are_those_of_the_configuration(tiny_dir: MakeDir) -> None:
    pair = tiny_pair(tiny_dir, "model")
    section = model_section(Path(pair.target), quantization="none")
    assert pair.model(pair.target, "none") == section
