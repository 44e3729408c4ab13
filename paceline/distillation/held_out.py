"""The prompts of the evaluation: kinds that no built-in training prompt is of."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.distillation.prompts import Prompt, question

_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "poem": (
        "Write a poem of four lines about an empty harbour.",
        "Write a haiku about a traffic jam.",
        "Compose a limerick about a sleepy mayor.",
    ),
    "song": (
        "Write the chorus of a country song about a lost hat.",
        "Write a lullaby for a child who is afraid of thunder.",
    ),
    "riddle": (
        "Invent a riddle whose answer is a shadow.",
        "Ask me three riddles and give the answers at the end.",
    ),
    "diary": (
        "Write a diary entry of a soldier on his first day at home.",
        "Write what a lighthouse lamp would write in its diary.",
    ),
    "press release": (
        "Write a press release about a town that plants ten thousand trees.",
        "Announce to the press that a zoo has a new elephant.",
    ),
    "slogan": (
        "Write five advertising slogans for a repair shop for shoes.",
        "I need a catchy motto for a rowing club.",
    ),
    "shell": (
        "Which shell command lists the ten largest files of a folder?",
        "How do I find all lines that contain the word error in a log file with grep?",
        "Write a Bash script that renames all .txt files of a folder to .bak.",
    ),
    "regular expression": (
        "Write a regular expression that matches dates like 2024-05-17.",
        "What does the regular expression ^[A-Z]{2}\\d{4}$ match?",
    ),
    "web page": (
        "Write the HTML of a page with a heading, a picture and a form with two fields.",
        "Write CSS that centres a box on the page.",
    ),
    "glossary": (
        "Define these words in one line each: mortgage, dividend, collateral, audit.",
        "What do the words nocturnal, arboreal and aquatic mean?",
        "Give three synonyms and one antonym each for brave, quick and dull.",
    ),
    "interview": (
        "Which questions should I ask a candidate for a post in accounting?",
        "Write an interview with the first person who lives on Mars.",
    ),
    "hypothetical": (
        "What would happen if the Earth stopped turning?",
        "Imagine that people could not lie. How would shops change?",
        "If you could talk to one tree, what would you ask?",
    ),
    "sentiment": (
        'Is this review positive or negative? "The room was clean, but the staff ignored us."',
        "Sort these comments into praise and complaint: great service; far too slow; lovely view;"
        " cold food.",
    ),
    "vacancy": (
        "Write a job advertisement for a night porter.",
        "Write a cover letter for a post as a museum guide.",
    ),
    "training plan": (
        "Give me a workout with five exercises that needs no equipment.",
        "Write a meal plan for a vegetarian athlete for Monday.",
    ),
    "contract": (
        "Write a clause for a lease that forbids smoking in the flat.",
        "Write the terms of use of a small online shop.",
    ),
    "horoscope": ("Write a funny horoscope for people born in February.",),
    "joke": (
        "Tell me a joke about a penguin at the bank, and explain why it is funny.",
        "Write three puns with the word bread.",
    ),
    "debate": (
        "You are for school uniforms. Answer somebody who is against them.",
        "Convince a stubborn king that he should not start a war.",
    ),
    "role": (
        "You are a pirate. Describe your ship to me.",
        "Act as a doctor and ask me about my headache.",
        "Pretend to be a tour guide in a castle and show us the first three rooms.",
    ),
    "ordering": (
        "Sort these numbers from small to large: 14, 3, 89, 27, 55.",
        "Put these events in order: first flight, first printed book, first e-mail.",
    ),
    "logic": (
        "All bloops are razzies and all razzies are lazzies. Are all bloops lazzies?",
        "Anna is taller than Ben, and Ben is taller than Carl. Who is the smallest?",
    ),
    "myth": (
        "Tell the legend of how the mountain got its snow.",
        "Invent a god of doors and describe a temple of his.",
    ),
}

_BEGINNINGS: Mapping[str, tuple[str, ...]] = {
    "news": (
        "BERLIN, 4 May. Thousands of passengers were stranded on Tuesday after",
        "Local firefighters rescued a cow from a frozen pond on Saturday morning.",
        "Shares of the airline fell sharply after the company announced that",
    ),
    "abstract": (
        "Abstract. We study how small groups of people make decisions under time pressure.",
        "In this paper we propose a method that",
    ),
    "notes of a release": ("## Changelog\n\n### 2.4.0\n\n- Added",),
    "review": (
        "I bought this vacuum cleaner three months ago and",
        "The second film of the series is a disappointment, because",
    ),
    "play": ("ACT I. A dark forest at night. Enter two WITCHES.\n\nFIRST WITCH:",),
    "questions and answers": ("Q: Can I return a product that I have opened?\nA:",),
    "class": ("class BankAccount:\n    def __init__(self, owner, balance=0):\n",),
    "minutes": ("Minutes of the meeting of 3 June\n\nPresent:",),
}


def held_out_prompts() -> list[Prompt]:
    """All of them, in a fixed order."""
    asked = [question(kind, text) for kind, texts in _QUESTIONS.items() for text in texts]
    begun = [Prompt(kind, text=text) for kind, texts in _BEGINNINGS.items() for text in texts]
    return asked + begun
