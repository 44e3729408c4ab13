"""What the demo asks for."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.prompts import FIVE_PROMPTS
from paceline.client import GenerateFields


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: a name for tables, and the fields that make it."""

    name: str
    shown: str
    fields: GenerateFields


def _completion(name: str, text: str) -> Prompt:
    return Prompt(name, text, {"prompt": text})


WARM_UP = _completion("warm-up", "The history of the printing press")
"""Not measured."""

_ARTICLE = """\
The Tour de France is an annual men's multiple-stage bicycle race held primarily in France. It \
consists of twenty-one day-long stages over the course of twenty-three or twenty-four days, \
starting in late June or early July. The race was first organised in 1903 to increase sales for \
the newspaper L'Auto. Riders who ride in a line close behind one another form a paceline. The \
rider at the front of a paceline faces the wind, and the riders behind save up to a third of their \
energy by drafting. Each rider takes a turn at the front before moving to the back of the line. \
Teams of eight riders use pacelines to bring their leader to the finish with the least effort."""

_QUESTION = "Summarise this text. Repeat its most important sentences word by word:"

PROMPTS = (
    *(_completion(name, text) for name, text in FIVE_PROMPTS.items()),
    Prompt(
        "summary",
        f"{_QUESTION} (an article of {len(_ARTICLE.split())} words)\n",
        {"messages": [{"role": "user", "content": f"{_QUESTION}\n\n{_ARTICLE}"}]},
    ),
)
