"""Other outcomes drafted ahead: what drafter and simulator have to agree on."""

MAX_SESSIONS_AHEAD = 4
"""A drafter of more sessions does better to draft for each of them."""
