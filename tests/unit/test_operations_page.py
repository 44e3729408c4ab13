"""The figures of docs/operations.md are what its formulas give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.simulation.closed_forms import overlapped_speedup

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()


def table(header: str) -> list[list[str]]:
    """The cells of the table under a header row."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_kv_table_follows_its_formula() -> None:
    rows = table("| model | layers |")
    assert len(rows) >= 6
    for name, layers, heads, width, size, kib, gib in rows:
        num_bytes = 2 * int(layers) * int(heads) * int(width) * int(size)
        assert float(kib) == num_bytes / 1024, name
        assert float(gib) == pytest.approx(num_bytes * 32768 / 2**30, abs=0.005), name


def test_the_table_of_speedups_follows_the_closed_form() -> None:
    header = "| c | α = 0.5 | α = 0.6 | α = 0.7 | α = 0.8 | α = 0.9 |"
    rows = table(header)
    assert len(rows) == 5
    acceptances = [float(value) for value in re.findall(r"α = ([\d.]+)", header)]
    for cost, *cells in rows:
        for acceptance, cell in zip(acceptances, cells, strict=True):
            speedups = {
                num: overlapped_speedup(acceptance, num, verify_s=1.0, draft_s=float(cost))
                for num in range(1, 17)
            }
            best = max(speedups, key=speedups.__getitem__)
            assert cell == f"{speedups[best]:.2f} ({best})"
