"""Logging of a process: plain text on stderr, set up once in a `__main__`."""

from __future__ import annotations

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")


def setup_logging(level: str = "info") -> None:
    """Send every record of `level` and above to stderr, replacing earlier handlers.

    Raises `ValueError` for a level that is not in `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
