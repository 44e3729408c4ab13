"""What a forward pass takes on a device that is emulated or simulated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one pass, by its tokens and sessions.

    `base_s` is the time to read the weights. It holds up to `knee_tokens` tokens; beyond them the
    device is bound by computing, and it grows in proportion to the tokens (the roofline model,
    Williams et al. 2009). 0 is no knee. `per_token_s` and `per_session_s` come on top.
    """

    base_s: float
    per_token_s: float = 0.0
    per_session_s: float = 0.0
    knee_tokens: int = 0

    def seconds(self, num_tokens: int, num_sessions: int) -> float:
        """Of a pass over so many tokens of so many sessions."""
        load = max(1.0, num_tokens / self.knee_tokens) if self.knee_tokens else 1.0
        each = num_tokens * self.per_token_s + num_sessions * self.per_session_s
        return self.base_s * load + each
