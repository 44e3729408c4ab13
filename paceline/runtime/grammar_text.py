"""Grammars as text, as llguidance reads them: from a JSON schema, a regular expression, choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, regex_to_lark

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_REASON = 300

_JSON_DEFAULTS: JsonCompileOptions = {"whitespace_pattern": r"[ \n\t]{0,32}"}
"""Between JSON's tokens. Bounded, because small models like to go on with white space for ever."""
_JSON_RULES: JsonCompileOptions = {"lenient": False}
"""A keyword that is not understood is an error; nothing of a schema is silently ignored."""


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """JSON text that a schema admits. Raises `ValueError` for options that do not exist."""
    return str(LLMatcher.grammar_from_json_schema(dict(schema), _JSON_DEFAULTS, _JSON_RULES))


def regex_grammar(pattern: str) -> str:
    """Text that a regular expression matches as a whole.

    The syntax is that of Rust's `regex`, without look-around; `\\d` and `\\w` mean ASCII, as in
    JavaScript and in the patterns of a JSON schema.
    """
    return str(LLMatcher.grammar_from_regex(regex_to_lark(pattern, "dw")))


def choice_grammar(choices: Sequence[str]) -> str:
    """Text that is one of the choices."""
    return regex_grammar("|".join(map(_escaped, choices)))


def _escaped(text: str) -> str:
    """A pattern of just this text: every ASCII character but letters and digits by its code."""
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{ord(c):02x}" for c in text)


def one_line(reason: str) -> str:
    """The library's reason without its drawings: the line that names the error, cut to a size."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (named or lines or ["unknown error"])[0][:MAX_REASON]
