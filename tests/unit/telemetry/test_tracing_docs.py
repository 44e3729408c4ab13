"""`docs/tracing.md` names every span and attribute that the code makes, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs" / "tracing.md").read_text()
SOURCES = [
    *(ROOT / "paceline" / "telemetry").glob("*.py"),
    ROOT / "paceline" / "client_span.py",
    *(ROOT / "orchestrator" / f"{name}.py" for name in ("answer_trace", "request_trace")),
    ROOT / "orchestrator" / "token_spans.py",
    ROOT / "drafter_service" / "traces.py",
    ROOT / "verifier_service" / "traces.py",
]
CODE = "\n".join(path.read_text() for path in SOURCES)
NOT_ATTRIBUTES = {"paceline.client", "paceline.generate"}
PENALTIES = {"gen_ai.request.frequency_penalty", "gen_ai.request.presence_penalty"}
SPLIT = {f"paceline.{part}_ms" for part in ("draft", "wire", "queue", "verify", "emit")}


def test_the_table_of_attributes_has_those_that_the_code_makes_and_no_other() -> None:
    """The two tables agree; names that are put together are listed above."""
    quoted = set(re.findall(r'"((?:paceline|gen_ai|rpc|server|error)\.[a-z_.]+)"', CODE))
    assert quoted, "the pattern finds nothing"
    made = (quoted | PENALTIES | SPLIT) - NOT_ATTRIBUTES
    told = set(re.findall(r"`((?:paceline|gen_ai|rpc|server|error)\.[a-z_.]+)`", DOCS))
    assert told - NOT_ATTRIBUTES == made


def test_the_table_of_spans_has_those_that_the_code_makes_and_no_other() -> None:
    made = set(re.findall(r'\.add\(\s*"([a-z]+)"', CODE))
    table = DOCS.partition("## Spans")[2].partition("## Attributes")[0]
    told = set(re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE))
    assert told == made | {"queue"}
    assert '"queue"' in CODE
