"""The kinds of the built-in training prompts, and how each is put together."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

from paceline.distillation import topics
from paceline.distillation.passages import broken_json, passage, record

CHAT: Mapping[str, tuple[str, ...]] = {
    "explain": (
        "Explain {thing} to a beginner.",
        "What is important to know about {thing}?",
        "Explain in simple words how {thing} came to be as we know them today.",
        "Why does {thing} matter? Answer in one paragraph.",
        "Give me a short introduction to {thing}.",
    ),
    "compare": (
        "What is the difference between {thing} and {thing}?",
        "Compare {thing} with {thing}. Which is more useful, and why?",
        "What do {thing} and {thing} have in common?",
    ),
    "list": (
        "List {n} facts about {thing}.",
        "Give me {n} reasons to be interested in {thing}.",
        "Name {n} things that everybody should know about {thing}, as bullet points.",
        "What are the {n} most common mistakes when people want to {skill}?",
    ),
    "how-to": (
        "How do I {skill}?",
        "Write step-by-step instructions: how to {skill}.",
        "I want to {skill}. What should I do first?",
        "Give me {n} tips that help to {skill}.",
    ),
    "story": (
        "Write a short story about a {job} who finds {object} in {place}.",
        "Tell me a story about {name}, a {job}, and {object}.",
        "Begin a story in which {name} and {name} travel to {place} with {object}.",
        "Write a story for children about {object}.",
    ),
    "code": (
        "Write a {language} function that {function}.",
        "Write a {language} program that {function}. Explain how it works.",
        "Show me how to write code in {language} that {function}.",
    ),
    "tests": ("Write unit tests in Python for a function that {function}.",),
    "rewrite": (
        "Rewrite this sentence more formally: {sentence}",
        "Say the same in other words: {sentence}",
        "Make this text shorter:\n\n{passage}",
        "Rewrite the following text in a friendly tone.\n\n{passage}",
    ),
    "correct": (
        "Correct the mistakes in this sentence: {mistake}",
        "Fix the grammar: {mistake}",
    ),
    "summarise": (
        "Summarize the following text in two sentences.\n\n{passage}",
        "What is this text about?\n\n{passage}",
        "{passage}\n\nGive the main points of the text above as a list.",
    ),
    "copy": (
        "Repeat the following text exactly:\n\n{passage}",
        "Copy this text and do not change anything:\n\n{passage}",
        "Write down the text below, with every sentence on a line of its own.\n\n{passage}",
    ),
    "extract": (
        "List all names and numbers in this text:\n\n{passage}",
        "{passage}\n\nWhich places are mentioned in the text?",
        "Read the text and answer the question.\n\n{passage}\n\nQuestion: What happened, and when?",
        "Quote the first sentence of this text, then say what it means:\n\n{passage}",
    ),
    "fix JSON": (
        "Fix this JSON and print only the result:\n\n{broken}",
        "This JSON is not valid. What is wrong, and what is the correct form?\n\n{broken}",
    ),
    "make JSON": (
        "Turn this into JSON: {fields}",
        "Write a JSON object for a {job} named {name} who lives in {place}.",
        'Add a field "country" to this JSON and print it again:\n\n{record}',
    ),
    "translate": (
        "Translate into {tongue}: {sentence}",
        'How do you say this in {tongue}? "{sentence}"',
    ),
    "fact": ("{fact}", "{fact} Answer in one sentence.", "{fact} Explain your answer."),
    "e-mail": (
        "Write an e-mail to {name} about {thing}.",
        "Write a polite e-mail in which {name} asks a {job} in {place} for an appointment.",
        "Write a short e-mail that thanks {name} for {object}.",
    ),
    "dialogue": (
        "Write a dialogue between a {job} and a {job} about {thing}.",
        "Write a conversation in which {name} asks {name} how to {skill}.",
    ),
    "word problem": (
        "{name} has {n} boxes with {m} pencils each and gives away {k} pencils. How many are left?",
        "A train travels {m} kilometres an hour for {n} hours. How far does it go?",
        "A shirt costs {m} euros and is reduced by {k} percent. What does it cost now? Show your"
        " work.",
        "{name} reads {k} pages a day. How long does a book of {m}0 pages take?",
    ),
    "table": (
        "Make a table that compares {thing}, {thing} and {thing}.",
        "Write a Markdown table with {n} rows about {thing}.",
    ),
    "opinion": (
        "What are the pros and cons of {thing}?",
        "Do you think that everybody should {skill}? Give reasons.",
        "Write a short essay on the future of {thing}.",
    ),
    "describe": (
        "Describe {place} in the early morning.",
        "Describe {object} so that a blind person can imagine it.",
        "Describe the working day of a {job}.",
    ),
    "names": (
        "Suggest {n} names for the shop of a {job} in {place}.",
        "Suggest a title for a book about {thing} and explain it.",
    ),
    "quiz": ("Write a quiz with {n} questions about {thing}, with answers.",),
    "plan": (
        "Make a plan for one week to {skill}.",
        "Plan a school lesson about {thing}.",
    ),
    "speech": ("Write a short speech about {thing} that {name} gives in {place}.",),
}
"""Questions and tasks by kind, for models with a chat template."""

PLAIN: Mapping[str, tuple[str, ...]] = {
    "encyclopaedia": (
        "{Thing}: an introduction.",
        "The history of {thing} began",
        "One of the most important things about {thing} is",
        "In this article we look at {thing}.",
        "Experts disagree about {thing}, because",
        "The main advantage of {thing} is that",
        "Many people believe that {thing}",
    ),
    "narrative": (
        "{name} had been a {job} for many years before",
        "Once upon a time there was a {job} in {place} who",
        "When {name} woke up that day, {object} was lying on the table.",
        "On the way to {place}, {name} and {name} met a {job}.",
    ),
    "advice": (
        "The best way to {skill} is",
        "How to {skill}\n\n1.",
        "If you want to {skill}, you should",
    ),
    "source": (
        "# A Python function that {function}\ndef ",
        "// This program {function}.\n",
    ),
    "continued": ("{passage}",),
}
"""Beginnings of texts, to go on with as they are."""


def fill(template: str, rng: random.Random) -> str:
    """The template with every slot filled, each by itself."""
    parts: list[str] = []
    rest = template
    while "{" in rest:
        before, _, tail = rest.partition("{")
        slot, _, rest = tail.partition("}")
        parts += (before, _SLOTS[slot](rng))
    return "".join((*parts, rest))


def _one_of(values: tuple[str, ...]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(values)


def _fields(rng: random.Random) -> str:
    return ", ".join(f"{key} {value}" for key, value in record(rng).items())


_SLOTS: Mapping[str, Callable[[random.Random], str]] = {
    "thing": _one_of(topics.THINGS),
    "Thing": lambda rng: rng.choice(topics.THINGS).capitalize(),
    "skill": _one_of(topics.SKILLS),
    "name": _one_of(topics.NAMES),
    "place": _one_of(topics.PLACES),
    "job": _one_of(topics.JOBS),
    "object": _one_of(topics.OBJECTS),
    "function": _one_of(topics.FUNCTIONS),
    "language": _one_of(topics.LANGUAGES),
    "tongue": _one_of(topics.TONGUES),
    "sentence": _one_of(topics.SENTENCES),
    "mistake": _one_of(topics.MISTAKES),
    "fact": _one_of(topics.FACTS),
    "passage": passage,
    "broken": broken_json,
    "record": lambda rng: json.dumps(record(rng)),
    "fields": _fields,
    "n": lambda rng: str(rng.randint(3, 8)),
    "m": lambda rng: str(rng.randint(12, 90)),
    "k": lambda rng: str(rng.randint(5, 11)),
}
