"""How long OpenMP's threads poll for work before they sleep, where two processes share the CPUs.

torch's threads (GNU OpenMP) poll for milliseconds after each product, so that they are there for
the next; a process that has the CPUs to itself decodes 1.2 to 1.4 times as fast for it. Two that
share them take each other's time. On two cores a step of SmolLM2-135M in float32 took 61 ms alone
and 188 ms while its nf4 copy drafted, whose own steps went from 27 to 207 ms. Polling for some
0.1 ms bridges the gaps within a pass: alone a step in bfloat16 takes 37 to 38 ms instead of 36, and
the two together 73 and 87 ms. With `OMP_WAIT_POLICY=passive` that is 63 and 40 ms, but a step
alone takes an eighth longer.
"""

from __future__ import annotations

from collections.abc import Mapping

_VARIABLE = "GOMP_SPINCOUNT"
_TURNS = "4000"


def of_shared_cpus(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to a worker's environment, before it loads torch; nothing if it has its own."""
    if _VARIABLE in environment or "OMP_WAIT_POLICY" in environment:
        return {}
    return {_VARIABLE: _TURNS}
