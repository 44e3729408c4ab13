"""Other outcomes drafted ahead: what drafter and simulator have to agree on."""

OUTCOMES_A_POSITION = 2
"""Tokens that may come in place of a draft, for each of which there is a branch: along greedy texts
of SmolLM2 drafted by its nf4 copy the likeliest other token is what comes in 0.634 of all
rejections, one of the two likeliest in 0.800, of four in 0.910. Every row takes the host time."""

MAX_SESSIONS_AHEAD = 4
"""A drafter of more sessions does better to draft for each of them."""
