"""When requests come: a Poisson process, the same for the same seed."""

from __future__ import annotations

import random


def poisson_arrivals(rate: float, num_requests: int, *, seed: int) -> list[float]:
    """Times in seconds of `num_requests` arrivals at `rate` a second, the first at 0.

    Gaps are independent and exponential; rates share their seed's gaps, scaled.
    """
    draw = random.Random(seed)
    times = [0.0]
    for _ in range(num_requests - 1):
        times.append(times[-1] + draw.expovariate(1.0) / rate)
    return times
