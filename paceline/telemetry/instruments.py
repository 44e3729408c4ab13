"""OpenTelemetry instruments under one prefix, made once.

Counters and gauges are read from plain numbers when metrics are collected, so that counting costs
an addition; only histograms are told of each value (about 4 µs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, NoOpMeter, Observation

Labels: TypeAlias = Mapping[str, str]
Reading: TypeAlias = Iterable[tuple[float, Labels]]
"""A value for each set of labels."""

FAST_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Buckets for what happens many times a second, in seconds."""
SLOW_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0)
"""Buckets for what happens once a request, in seconds."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0)
"""Buckets for counts of tokens and sessions."""


class Histogram(Protocol):
    """An instrument that is told of every value."""

    def record(self, amount: float) -> None: ...


class Instruments:
    """Makes the instruments of one service: `name` becomes `paceline.SERVICE.name`.

    Prometheus shows `paceline_SERVICE_name` with the unit (`s`: `_seconds`, `By`: `_bytes`; one in
    braces is a remark) and, for counters, `_total`.
    """

    def __init__(self, meter: Meter, service: str) -> None:
        self._meter = meter
        self._prefix = f"paceline.{service}"

    def counter(self, name: str, unit: str, description: str, read: Callable[[], Reading]) -> None:
        """A number that only grows, read by `read`."""
        self._meter.create_observable_counter(
            f"{self._prefix}.{name}", [_observing(read)], unit, description
        )

    def gauge(self, name: str, unit: str, description: str, read: Callable[[], Reading]) -> None:
        """How much there is now, read by `read`."""
        self._meter.create_observable_gauge(
            f"{self._prefix}.{name}", [_observing(read)], unit, description
        )

    def histogram(
        self, name: str, unit: str, description: str, bounds: Sequence[float]
    ) -> Histogram:
        """A distribution over buckets that end at `bounds`."""
        made: Histogram = self._meter.create_histogram(
            f"{self._prefix}.{name}",
            unit,
            description,
            explicit_bucket_boundaries_advisory=bounds,
        )
        return made


def off(service: str) -> Instruments:
    """Instruments that do nothing."""
    return Instruments(NoOpMeter("paceline"), service)


def one(value: float) -> Reading:
    """A reading without labels."""
    return [(value, {})]


def by(label: str, values: Mapping[str, float]) -> Reading:
    """A reading for each value of one label."""
    return [(value, {label: name}) for name, value in values.items()]


def _observing(read: Callable[[], Reading]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _options: [Observation(value, labels) for value, labels in read()]
