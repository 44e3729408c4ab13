"""Points of a sweep."""

from __future__ import annotations

import pytest

from paceline.bench.grid import FULL, LIMITS, QUICK, Grid, Point, parse_numbers, points_of
from paceline.errors import ConfigError


def test_a_grid_is_every_combination() -> None:
    grid = Grid((0.5, 0.9), (0.0, 20.0), (1, 8), (30.0,), (3.0, 6.0), (0, 64), (0.6, 0.0))
    points = grid.points()
    assert len(points) == len(set(points)) == len({p.label for p in points}) == 2**6
    assert Point(0.9, 20.0, 8, 30.0, 6.0, 64, 0.0) in points
    assert points[:2] == [Point(0.5), Point(0.9)]


def test_points_of_several_grids_come_once_and_in_order() -> None:
    assert points_of([Grid((0.5, 0.6)), Grid((0.6, 0.7))]) == [Point(0.5), Point(0.6), Point(0.7)]


def test_the_known_grids_hold_what_must_hold() -> None:
    full = points_of(FULL)
    for point in [
        *(Point(alpha, rtt) for alpha in (0.6, 0.8, 0.9) for rtt in (0.0, 20.0)),
        Point(0.0),
        Point(0.8, draft_ms=40.0),
        Point(0.8, concurrency=64, knee_tokens=64),
        Point(0.9, concurrency=32),
    ]:
        assert point in full
    assert set(points_of(QUICK)) - set(full) <= {Point(0.8, concurrency=8)}
    labels = [point.label for point in full]
    assert len(set(labels)) == len(labels), "they are keys of results"


def test_numbers_are_read_once_each() -> None:
    assert parse_numbers("alpha", "0.6, 0.9,0.6") == [0.6, 0.9]
    assert parse_numbers("concurrency", "1,32") == [1, 32]


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("alpha", "0.5,1.5", "1.5 is not from 0.0 to 1"),
        ("alpha", "0.5,,0.6", "'' is not a number"),
        ("alpha", "nan", "nan is not from 0.0 to 1"),
        ("gamma", "0", "0 is not from 1 to 32"),
        ("gamma", "2.5", "'2.5' is not a whole number"),
        ("rtt-ms", "-1", "-1 is not from 0.0 to 10000"),
        ("concurrency", "many", "'many' is not a whole number"),
    ],
)
def test_a_wrong_entry_is_named_with_its_limits(option: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_numbers(option, text)
    assert f"--{option} {text}" in str(caught.value)
    assert problem in str(caught.value)
    assert option in LIMITS
