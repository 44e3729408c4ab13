"""The error tree is what its docstring draws."""

from __future__ import annotations

import re

import paceline.errors
from paceline.errors import InvalidArgumentError, PacelineError


def subclasses(error_class: type[PacelineError]) -> list[type[PacelineError]]:
    below = error_class.__subclasses__()
    return [error_class, *(deeper for child in below for deeper in subclasses(child))]


def test_the_docstring_draws_every_error_with_its_parent_and_code() -> None:
    parents: list[tuple[int, str]] = []
    drawn: dict[str, tuple[str | None, str | None]] = {}
    for line in (paceline.errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\s+([A-Z_]{4,})?", line)
        if match is None:
            continue
        depth, name, code = len(match[1]), match[2], match[3]
        parents = [entry for entry in parents if entry[0] < depth]
        drawn[name] = (parents[-1][1] if parents else None, code)
        parents.append((depth, name))
    for error_class in subclasses(PacelineError):
        parent, code = drawn.pop(error_class.__name__)
        assert (parent or "Exception") == error_class.__bases__[0].__name__
        # A class without a code of its own in the drawing has its parent's.
        own = "code" in vars(error_class)
        assert code == (error_class.code if own else None)
    assert drawn == {}


def test_an_invalid_argument_starts_with_its_field() -> None:
    error = InvalidArgumentError("top_p", "must be at most 1")
    assert str(error) == "top_p: must be at most 1"
    assert error.field == "top_p"
