"""The demo tells the truth about two runs."""

import json
import math

from rich.console import Console

from demo.prompts import PROMPTS
from demo.report import as_json, table_of, verdict_of
from demo.runs import Run, Split, first_split, median_run
from paceline.client import GenerateResult, Stats, Token, TopLogprob, Usage


def run_of(ids: list[int], *, speculation: bool = False, latency_s: float = 1.0) -> Run:
    """A run whose target preferred each token to the next one by 0.25 nats."""
    top = (TopLogprob(1, "a", -0.5), TopLogprob(2, "b", -0.75))
    origin = "accepted" if speculation else "autoregressive"
    tokens = tuple(Token(i, str(i), -0.5, top, origin) for i in ids)
    stats = Stats(
        speculation="on" if speculation else "off",
        drafted=4 * speculation,
        judged=4 * speculation,
        accepted=3 * speculation,
        passes=len(ids),
        mean_acceptance_length=1.0,
        bytes_drafter=0,
        bytes_verifier=0,
        time_to_first_token_ms=1.0,
        total_ms=1.0,
        draft_ms=0.0,
        verify_ms=0.0,
        queue_ms=0.0,
        seed=1,
        epochs=0,
    )
    text = "".join(token.text for token in tokens)
    result = GenerateResult(text, tokens, "length", Usage(3, len(ids)), stats)
    return Run(PROMPTS[0], speculation, result, latency_s, first_token_s=0.1)


def test_of_repeats_the_one_of_median_latency_counts() -> None:
    runs = [run_of([1], latency_s=seconds) for seconds in (3.0, 1.0, 2.0)]
    assert median_run(runs) is runs[2]
    assert median_run(runs[:2]) is runs[0], "of two the slower one"
    assert median_run(runs[:1]) is runs[0]


def test_equal_ids_do_not_part() -> None:
    assert first_split(run_of([1, 2, 3]), run_of([1, 2, 3])) is None


def test_texts_part_at_the_first_different_id_with_the_gap_there() -> None:
    assert first_split(run_of([1, 2, 3]), run_of([1, 9, 3])) == Split(1, 0.25)


def test_a_prefix_parts_at_its_end_whichever_run_it_is() -> None:
    assert first_split(run_of([1, 2]), run_of([1, 2, 3])) == Split(2, 0.25)
    assert first_split(run_of([1, 2, 3]), run_of([1, 2])) == Split(2, 0.25)


def test_the_verdict_names_losses_and_gains_alike() -> None:
    pairs = [(run_of([1, 2]), run_of([1, 2], speculation=True, latency_s=2.0))]
    lines = verdict_of(pairs, dtype="float32")
    assert lines[0].startswith("Every text with speculation is the text without")
    assert lines[-2] == "Faster with speculation: none."
    assert lines[-1] == "Slower with speculation: future of AI 0.50x."


def test_a_split_is_explained_in_bfloat16_and_a_fault_in_float32() -> None:
    pairs = [(run_of([1, 2]), run_of([1, 3], speculation=True))]
    explained = " ".join(verdict_of(pairs, dtype="bfloat16"))
    assert "future of AI at token 1 (0.250)" in explained
    assert "near-ties" in explained
    assert "please report" in " ".join(verdict_of(pairs, dtype="float32"))


def test_the_table_has_both_runs_and_the_totals() -> None:
    pairs = [(run_of([1, 2]), run_of([1, 2], speculation=True))]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table_of(pairs))
    plain, speculative, total, total_on = capture.get().splitlines()[1:]
    assert plain.split()[-1] == "-0.500"
    assert "75 %" in speculative
    assert speculative.split()[-1] == "yes"
    assert total.split()[:2] == ["all", "off"]
    assert total_on.split()[0] == "on"


def test_the_figures_are_valid_json() -> None:
    pairs = [(run_of([1, 2]), run_of([1, 2], speculation=True))]
    data = json.loads(json.dumps(as_json(pairs, {"verifier": 5, "orchestrator": None})))
    assert [run["speculation"] for run in data["runs"]] == [False, True]
    assert math.isclose(data["runs"][1]["acceptance_rate"], 0.75)
    assert data["same_text"] == {"future of AI": True}
