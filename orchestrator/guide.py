"""What a request's output must match, as the grammar that the workers read."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from paceline.errors import InvalidArgumentError
from paceline.generation import GenerateCall
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.grammar_text import choice_grammar, regex_grammar, schema_grammar
from paceline.types import WorkerInfo

MAX_GUIDE_LENGTH = 32_768
"""Characters of a schema, of a pattern, or of all choices together."""
MAX_CHOICES = 512


def guiding_grammar(call: GenerateCall, *, engine: GrammarEngine, target: WorkerInfo) -> str:
    """The grammar of a call; empty if its output is free.

    It is compiled here once, in milliseconds, so that no worker meets a bad one; call it off the
    event loop. Raises `InvalidArgumentError` naming the field, with the library's reason.
    """
    given = {
        "guided_json": call.guided_json,
        "guided_regex": call.guided_regex,
        "guided_choice": call.guided_choice,
    }
    fields = [name for name, value in given.items() if value]
    if not fields:
        return ""
    field = fields[0]
    if len(fields) > 1:
        problem = f"at most one of {', '.join(given)} may be given; {' and '.join(fields)} were"
        raise InvalidArgumentError(field, problem)
    _check_end(field, call, target)
    if len(call.guided_choice) > MAX_CHOICES:
        raise InvalidArgumentError(
            "guided_choice", f"{len(call.guided_choice)} choices; at most {MAX_CHOICES}"
        )
    _check_size(field, sum(map(len, given[field])))
    grammar = _grammar(field, call)
    problem = engine.problem(grammar)
    if problem:
        raise InvalidArgumentError(field, problem)
    return grammar


def _check_end(field: str, call: GenerateCall, target: WorkerInfo) -> None:
    """A grammar decides where the output may end, and there the model must be able to end it."""
    if call.sampling.ignore_eos:
        raise InvalidArgumentError(
            "ignore_eos", f"not with {field}: where the output is complete, only its end is left"
        )
    if call.sampling.min_tokens:
        raise InvalidArgumentError(
            "min_tokens", f"not with {field}, which decides where the output may end"
        )
    if not target.eos_token_ids:
        raise InvalidArgumentError(field, "the model has no end id to end a complete output with")


def _check_size(field: str, length: int) -> None:
    if length > MAX_GUIDE_LENGTH:
        raise InvalidArgumentError(field, f"{length} characters; at most {MAX_GUIDE_LENGTH}")


def _grammar(field: str, call: GenerateCall) -> str:
    if field == "guided_json":
        return _schema_grammar(call.guided_json)
    if field == "guided_regex":
        if _ends_in_escape(call.guided_regex):
            raise InvalidArgumentError(field, "it ends with a backslash that escapes nothing")
        return regex_grammar(call.guided_regex)
    if not all(call.guided_choice):
        raise InvalidArgumentError(field, f"choice {list(call.guided_choice).index('')} is empty")
    return choice_grammar(call.guided_choice)


def _schema_grammar(text: str) -> str:
    try:
        schema: Any = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("guided_json", f"it is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidArgumentError("guided_json", "a schema is a JSON object")
    try:
        return schema_grammar(schema)
    except ValueError as error:
        raise InvalidArgumentError("guided_json", str(error)) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _ends_in_escape(pattern: str) -> bool:
    """Whether it ends with a backslash that is not escaped itself; llguidance would drop it."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1
