"""How finely a request is traced."""

from __future__ import annotations

import enum


class Level(enum.IntEnum):
    """Each level includes those before it."""

    OFF = 0
    REQUEST = 1
    """The outline: the request, and queueing and prefill on each worker."""
    BLOCK = 2
    """Every draft block, every pass, every wait of the relay."""
    TOKEN = 3
    """Every committed token."""

    @classmethod
    def named(cls, name: str) -> Level:
        """The level of a configured name. Raises `KeyError` for an unknown one."""
        return cls[name.upper()]
