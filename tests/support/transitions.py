"""A target whose next token depends on the one before it alone: its law is known exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from scipy.stats import chi2

VOCAB = 4
TARGET = {
    0: {0: 0.7, 1: 0.2, 2: 0.1},
    1: {0: 0.1, 1: 0.6, 2: 0.3},
    2: {0: 0.25, 1: 0.25, 2: 0.4, 3: 0.1},
    3: {0: 0.5, 3: 0.5},
}
"""Probabilities of the ids that may follow each id."""


def p_value(texts: Sequence[Sequence[int]]) -> float:
    """Of the counts of all transitions, by chi-square; 0 if there is one that never happens."""
    counts = Counter(pair for text in texts for pair in pairwise(text))
    statistic, freedom = 0.0, 0
    for before, law in TARGET.items():
        total = sum(count for (first, _), count in counts.items() if first == before)
        if sum(counts[before, token] for token in law) != total:
            return 0.0
        freedom += len(law) - 1
        statistic += sum(
            (counts[before, token] - share * total) ** 2 / (share * total)
            for token, share in law.items()
        )
    return float(chi2.sf(statistic, freedom))
