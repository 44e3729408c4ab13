"""One failing item of a batch must not spoil the pass for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from paceline.errors import PacelineError

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_or_error(
    evaluate: Callable[[Tensor, Sequence[Item]], list[Result]],
    logits: Tensor,  # [sum of num_rows, V]
    items: Sequence[Item],
    num_rows: Sequence[int],  # rows of each item
) -> list[Result | PacelineError]:
    """`evaluate(logits, items)`; if that fails, each item by itself, with an error in its place."""
    try:
        return [*evaluate(logits, items)]
    except PacelineError:
        results: list[Result | PacelineError] = []
    start = 0
    for item, count in zip(items, num_rows, strict=True):
        try:
            results += evaluate(logits[start : start + count], [item])
        except PacelineError as error:
            results.append(error)
        start += count
    return results
