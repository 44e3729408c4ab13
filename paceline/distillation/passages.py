"""Short made-up texts with names and numbers, for prompts that summarise, copy or extract."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from paceline.distillation.topics import JOBS, NAMES, PLACES, THINGS

_BUILDINGS = ("library", "bridge", "market hall", "windmill", "theatre", "station", "bakery")
_COLOURS = ("red", "green", "dark blue", "white", "yellow", "grey")
_MONTHS = ("January", "March", "April", "June", "August", "October", "December")
_GOODS = ("apples", "notebooks", "lamps", "chairs", "blankets", "cups", "candles", "maps")
_ANIMALS = ("heron", "fox", "otter", "hedgehog", "barn owl", "red squirrel", "bat")


def passage(rng: random.Random) -> str:
    """One of the kinds of text below, with other names and numbers each time."""
    return rng.choice((_building, _person, _company, _animal, _event, _notice, _trip))(rng)


def record(rng: random.Random) -> dict[str, object]:
    """A flat record, as forms and interfaces have it."""
    fields: dict[str, object] = {
        "name": rng.choice(NAMES),
        "age": rng.randint(18, 80),
        "city": rng.choice(PLACES),
        "job": rng.choice(JOBS),
        "active": rng.choice((True, False)),
        "items": rng.sample(_GOODS, 2),
        "total": round(rng.uniform(5, 200), 2),
        "month": rng.choice(_MONTHS),
    }
    return {key: fields[key] for key in rng.sample(sorted(fields), rng.randint(3, 6))}


def broken_json(rng: random.Random) -> str:
    """A record with what people get wrong in JSON: quotes, commas, braces."""
    text = json.dumps(record(rng))
    faults: tuple[Callable[[str], str], ...] = (
        lambda good: good.replace('"', "'"),
        lambda good: good.replace(", ", " ", 1),
        lambda good: good[:-1],
        lambda good: good.replace('": ', '" ', 1),
        lambda good: good.replace("{", "{,", 1),
    )
    return rng.choice(faults)(text)


def _building(rng: random.Random) -> str:
    building, place, year = rng.choice(_BUILDINGS), rng.choice(PLACES), rng.randint(1780, 1990)
    return (
        f"The old {building} of {place} was opened in {year}. It took {rng.randint(2, 9)} years to"
        f" build and cost more than the town had planned. The {rng.choice(_COLOURS)} roof can be"
        f" seen from {rng.randint(2, 12)} kilometres away. In {year + rng.randint(10, 60)} a fire"
        f" destroyed the eastern wing, and {rng.choice(NAMES)} {rng.choice(('Weber', 'Okoro'))}"
        f" led the repairs. Today about {rng.randint(3, 90) * 100} people visit it every month, and"
        " a small café on the ground floor sells cake and coffee."
    )


def _person(rng: random.Random) -> str:
    name, job = rng.choice(NAMES), rng.choice(JOBS)
    start = rng.randint(1955, 1998)
    return (
        f"{name} was born in {rng.choice(PLACES)} in {start}. After school {name} worked as a"
        f" {job} for {rng.randint(3, 20)} years. In {start + rng.randint(25, 35)} {name} moved to"
        f" {rng.choice(PLACES)} and opened a shop that sold {rng.choice(_GOODS)} and"
        f" {rng.choice(_GOODS)}. Friends remember a patient person who liked to talk about"
        f" {rng.choice(THINGS)}. {name} has {rng.randint(1, 4)} children and still rides a"
        f" {rng.choice(_COLOURS)} bicycle to work every day."
    )


def _company(rng: random.Random) -> str:
    goods, place = rng.choice(_GOODS), rng.choice(PLACES)
    before = rng.randint(20, 400)
    return (
        f"The {place} Trading Company sold {before} thousand {goods} last year, up from"
        f" {before - rng.randint(1, 15)} thousand the year before. Its director,"
        f" {rng.choice(NAMES)} {rng.choice(('Lindqvist', 'Moreau', 'Banda'))}, said that the new"
        f" factory near {rng.choice(PLACES)} had made the difference. The company employs"
        f" {rng.randint(30, 900)} people and plans to hire {rng.randint(5, 60)} more before"
        f" {rng.choice(_MONTHS)}. Costs for transport rose by {rng.randint(2, 19)} percent."
    )


def _animal(rng: random.Random) -> str:
    animal = rng.choice(_ANIMALS)
    return (
        f"The {animal} is active mostly at dawn and dusk. An adult weighs about"
        f" {rng.randint(1, 9)} kilograms and lives for {rng.randint(4, 18)} years. In a survey near"
        f" {rng.choice(PLACES)}, researchers counted {rng.randint(12, 300)} animals in an area of"
        f" {rng.randint(5, 80)} square kilometres. The {animal} avoids open fields and prefers the"
        " edges of woods, where it finds food and shelter. Its young are born in"
        f" {rng.choice(_MONTHS)} and leave their mother after {rng.randint(5, 14)} weeks."
    )


def _event(rng: random.Random) -> str:
    place, day = rng.choice(PLACES), rng.randint(1, 28)
    return (
        f"The {rng.randint(3, 40)}th {place} festival begins on {day} {rng.choice(_MONTHS)}. Over"
        f" {rng.randint(2, 9)} days, {rng.randint(20, 150)} groups from {rng.randint(4, 30)}"
        f" countries will perform in the streets. Tickets cost {rng.randint(5, 60)} euros and are"
        f" sold at the town hall. The opening speech is given by {rng.choice(NAMES)}, a"
        f" {rng.choice(JOBS)} who has helped since the first festival. Visitors are asked to come"
        " by train, because there are few places to park."
    )


def _notice(rng: random.Random) -> str:
    return (
        f"From {rng.choice(_MONTHS)} on, the swimming pool in {rng.choice(PLACES)} opens at"
        f" {rng.randint(6, 9)} in the morning and closes at {rng.randint(18, 22)} o'clock. Children"
        f" under {rng.randint(5, 12)} must come with an adult. A season ticket costs"
        f" {rng.randint(40, 140)} euros; families pay {rng.randint(90, 220)}. Lockers take a"
        f" coin. For lessons, please ask for {rng.choice(NAMES)} at the desk or call"
        f" {rng.randint(200, 999)}-{rng.randint(1000, 9999)}."
    )


def _trip(rng: random.Random) -> str:
    one, two = rng.sample(PLACES, 2)
    name = rng.choice(NAMES)
    return (
        f"{name} left {one} early on a cold morning with a {rng.choice(_COLOURS)} backpack and"
        f" {rng.randint(20, 300)} euros. The bus to {two} took {rng.randint(3, 14)} hours and"
        f" stopped {rng.randint(2, 6)} times. At the border a {rng.choice(JOBS)} shared some bread"
        f" and told a story about {rng.choice(THINGS)}. When {name} arrived, the hotel was full, so"
        f" {name} slept in the station. The next day the sun was shining, and everything looked"
        " easier."
    )
