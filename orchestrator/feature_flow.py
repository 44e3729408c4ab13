"""The target's features on their way to a drafter that asks for them."""

from __future__ import annotations

from paceline.features import Features
from paceline.types import WorkerInfo


class FeatureFlow:
    """How far a session's drafter has been told; each position goes to it once."""

    def __init__(self) -> None:
        self._end = 0

    def restart(self) -> None:
        """Another drafter, which has heard of nothing."""
        self._end = 0

    def fresh(self, features: Features | None) -> Features | None:
        """What is new of a verifier's features: one that replaces another repeats the old ones."""
        found = None if features is None else features.since(self._end)
        if found is not None:
            self._end = found.end
        return found


def asks_for_features(drafter: WorkerInfo | None, verifier: WorkerInfo | None) -> bool:
    """Whether a drafter wants what a verifier has; the widths were compared when it connected."""
    if drafter is None or verifier is None:
        return False
    return 0 < drafter.feature_size == verifier.feature_size
