"""What the orchestrator counts: requests, tokens, latencies as clients see them, its links.

Used on the event loop; what it counts is read on other threads. Without `export` it only counts,
for `Status`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opentelemetry.metrics import Meter

from paceline.telemetry.instruments import (
    FAST_S,
    SIZES,
    SLOW_S,
    Instruments,
    Reading,
    by,
    off,
    one,
)
from paceline.types import FinishReason, Origin

ROLES = ("verifier", "drafter")
USUAL_REFUSALS = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE")
"""Shown from the start, so that a first one is a change; others appear when they happen."""


@dataclass(slots=True)
class PeerMetrics:
    """What goes to and comes from one kind of peer, in payload bytes, and how its links fare."""

    num_sent_bytes: int = 0
    num_received_bytes: int = 0
    num_openings: int = 0
    num_losses: int = 0

    def sent(self, num_bytes: int) -> None:
        self.num_sent_bytes += num_bytes

    def received(self, num_bytes: int) -> None:
        self.num_received_bytes += num_bytes

    def opened(self) -> None:
        """A link was opened, for the first time or again."""
        self.num_openings += 1

    def lost(self) -> None:
        """A link ended, and not because we closed it."""
        self.num_losses += 1


@dataclass(frozen=True, slots=True)
class OrchestratorState:
    """How things are, for gauges: live sessions, and workers by role."""

    live_sessions: int
    workers: Mapping[str, int]
    connected_workers: Mapping[str, int]


class OrchestratorMetrics:
    """What an orchestrator does for its clients."""

    service = "orchestrator"

    def __init__(self) -> None:
        self.peers = {name: PeerMetrics() for name in (*ROLES, "client")}
        self._started = time.monotonic()
        self._requests = dict.fromkeys((reason.value for reason in FinishReason), 0)
        self._refusals = dict.fromkeys(USUAL_REFUSALS, 0)
        self._prompt_tokens = 0
        self._completions = dict.fromkeys((origin.value for origin in Origin), 0)
        self._drafted = 0
        self._dropped = 0
        self._reopenings = 0
        self._windows = 0
        self._window_sum = 0
        self._make_histograms(off(self.service))

    @property
    def counters(self) -> dict[str, int]:
        """Raw monotonic counters for `Status`; `window_tokens` is a sum over `windows`."""
        return {
            "requests": sum(self._requests.values()),
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": sum(self._completions.values()),
            "draft_tokens": self._drafted,
            "windows": self._windows,
            "window_tokens": self._window_sum,
            "uptime_us": int((time.monotonic() - self._started) * 1e6),
        }

    def export(self, meter: Meter, state: Callable[[], OrchestratorState]) -> None:
        """Show what is counted from here on through `meter`. Call it once, before the work."""
        make = Instruments(meter, self.service)
        self._make_histograms(make)
        self._export_requests(make)
        self._export_links(make)
        make.gauge(
            "live_sessions",
            "{session}",
            "Answers that are being generated.",
            lambda: one(state().live_sessions),
        )
        make.gauge(
            "workers", "{worker}", "Workers it knows, by role.", lambda: by("role", state().workers)
        )
        make.gauge(
            "connected_workers",
            "{worker}",
            "Workers with an open link, by role.",
            lambda: by("role", state().connected_workers),
        )

    def _export_requests(self, make: Instruments) -> None:
        make.counter(
            "requests",
            "{request}",
            "Answers that ended, by finish reason; a request for n answers counts n.",
            lambda: by("finish_reason", self._requests),
        )
        make.counter(
            "refused_requests",
            "{request}",
            "Requests that got no session, by gRPC status.",
            lambda: by("code", dict(self._refusals)),
        )
        make.counter(
            "prompt_tokens",
            "{token}",
            "Prompt tokens of answers that began.",
            lambda: one(self._prompt_tokens),
        )
        make.counter(
            "completion_tokens",
            "{token}",
            "Tokens delivered, by origin.",
            lambda: by("origin", self._completions),
        )
        make.counter(
            "draft_tokens",
            "{token}",
            "Draft tokens that drafters sent for sessions that were live.",
            lambda: one(self._drafted),
        )
        make.counter(
            "dropped_tokens",
            "{token}",
            "Of these, not passed on: of an old epoch, or for want of a verifier.",
            lambda: one(self._dropped),
        )
        make.counter(
            "session_reopenings",
            "{session}",
            "Sessions that went on elsewhere after their verifier failed.",
            lambda: one(self._reopenings),
        )

    def _export_links(self, make: Instruments) -> None:
        make.counter("wire", "By", "Payload bytes, by peer and direction.", self._read_wire)
        make.counter(
            "link_openings",
            "{link}",
            "Links to workers that were opened, by role.",
            lambda: by("role", {role: self.peers[role].num_openings for role in ROLES}),
        )
        make.counter(
            "link_losses",
            "{link}",
            "Links to workers that broke, by role.",
            lambda: by("role", {role: self.peers[role].num_losses for role in ROLES}),
        )

    def _read_wire(self) -> Reading:
        for name, peer in self.peers.items():
            yield peer.num_sent_bytes, {"peer": name, "direction": "sent"}
            yield peer.num_received_bytes, {"peer": name, "direction": "received"}

    def _make_histograms(self, make: Instruments) -> None:
        self._first_token_s = make.histogram(
            "time_to_first_token", "s", "From a session's opening to its first token.", SLOW_S
        )
        self._inter_token_s = make.histogram(
            "inter_token_latency",
            "s",
            "From one delivery of tokens to the next of the same answer.",
            FAST_S,
        )
        self._per_token_s = make.histogram(
            "time_per_output_token",
            "s",
            "Mean time a token after the first, once an answer.",
            FAST_S,
        )
        self._request_s = make.histogram(
            "request.duration", "s", "From an answer's beginning to its end.", SLOW_S
        )
        self._queue_s = make.histogram(
            "request.queue", "s", "Time that an answer waited for passes, in all.", SLOW_S
        )
        self._window = make.histogram(
            "window", "{token}", "Speculation window, at every verdict with a drafter.", SIZES
        )

    # --- what happens -----------------------------------------------------------------------

    def refused(self, code: str) -> None:
        """A request got no session; `code` is the name of a gRPC status."""
        self._refusals[code] = self._refusals.get(code, 0) + 1

    def began(self, prompt_tokens: int) -> None:
        """An answer began."""
        self._prompt_tokens += prompt_tokens

    def first_token(self, seconds: float) -> None:
        """An answer's first token was committed."""
        self._first_token_s.record(seconds)

    def delivered(self, origin: Origin) -> None:
        """A token goes to the client."""
        self._completions[origin.value] += 1

    def waited(self, seconds: float) -> None:
        """So much passed between two deliveries of an answer."""
        self._inter_token_s.record(seconds)

    def speculated(self, *, drafted: int, dropped: int, reopened: int) -> None:
        """What was drafted, dropped and reopened for an answer since this was last told."""
        self._drafted += drafted
        self._dropped += dropped
        self._reopenings += reopened

    def judged(self, window: int) -> None:
        """A verdict came for a session that may have so many drafts outstanding."""
        self._windows += 1
        self._window_sum += window
        self._window.record(window)

    def ended(
        self,
        reason: FinishReason,
        *,
        seconds: float,
        queue_s: float,
        per_token_s: float | None,
    ) -> None:
        """An answer ended."""
        self._requests[reason.value] += 1
        self._request_s.record(seconds)
        self._queue_s.record(queue_s)
        if per_token_s is not None:
            self._per_token_s.record(per_token_s)
