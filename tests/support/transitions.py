"""A target whose next token depends on the one before it alone: its law is known exactly."""

VOCAB = 4
TARGET = {
    0: {0: 0.7, 1: 0.2, 2: 0.1},
    1: {0: 0.1, 1: 0.6, 2: 0.3},
    2: {0: 0.25, 1: 0.25, 2: 0.4, 3: 0.1},
    3: {0: 0.5, 3: 0.5},
}
"""Probabilities of the ids that may follow each id."""
