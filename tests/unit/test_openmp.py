"""Polling is bounded where nobody has said how long it shall be."""

from __future__ import annotations

import pytest

from paceline.openmp import of_shared_cpus


def test_polling_is_bounded() -> None:
    assert of_shared_cpus({"PATH": "/bin"}) == {"GOMP_SPINCOUNT": "4000"}


@pytest.mark.parametrize(
    "own", [{"GOMP_SPINCOUNT": "100"}, {"OMP_WAIT_POLICY": "passive"}], ids=str
)
def test_what_the_user_has_set_stays(own: dict[str, str]) -> None:
    assert of_shared_cpus(own) == {}
