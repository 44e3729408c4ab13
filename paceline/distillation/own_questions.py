"""Questions that a chat model asks itself: it goes on where its template lets a user speak.

What comes is spread as the conversations were that the model learnt from, which no list of
templates is (Xu et al. 2024, arXiv 2406.08464, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from paceline.distillation.answers import Asker, Question
from paceline.distillation.recipe import DataSettings
from paceline.errors import ConfigError
from paceline.runtime.tokenizer import Tokenizer

MAX_QUESTION_TOKENS = 96
"""A question that is longer is left unanswered; what there is of it teaches all the same."""

TEMPERATURE = 0.8
"""Of the questions: at 1 a small model asks much that nobody would."""


def own_questions(tokenizer: Tokenizer, settings: DataSettings) -> list[Question]:
    """As many as the settings say, at their temperatures in turn.

    Raises `ConfigError` where the target has no chat template.
    """
    if not settings.num_own_questions:
        return []
    if not tokenizer.has_chat_template:
        raise ConfigError("--own-questions: the target has no chat template to ask itself with")
    before, end_id, header = _around_a_question(tokenizer)
    asker = Asker(end_id, header, MAX_QUESTION_TOKENS, TEMPERATURE)
    temperatures = settings.temperatures
    return [
        Question(before, temperatures[place % len(temperatures)], asker)
        for place in range(settings.num_own_questions)
    ]


def _around_a_question(tokenizer: Tokenizer) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """What the template writes before a user's words, what ends them, what opens the answer.

    They are what two conversations of other words have in common.
    """
    one, other = (tokenizer.encode_chat([{"role": "user", "content": word}]) for word in "AZ")
    before = _common_prefix(one, other)
    after = _common_prefix(one[::-1], other[::-1])[::-1]
    if not before or not after:
        raise ConfigError("--own-questions: the chat template sets nothing around a user's words")
    return before, after[0], after[1:]


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    pairs = zip(one, other, strict=False)
    return tuple(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
