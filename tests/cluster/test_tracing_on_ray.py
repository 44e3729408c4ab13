"""One trace over Ray's actors, whatever Ray's own tracing does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from support.otlp_receiver import otlp_grpc
from support.traced import SERVICES, by_name, check_durations, only

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0


async def test_a_request_is_one_trace_over_actors_though_ray_traces_by_itself() -> None:
    """J04, J07: the context travels as a field of ours; stopped actors have sent their spans.

    Ray's hook sets a provider for the whole program, so the client's own span is a real one.
    """
    async with otlp_grpc() as receiver:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("RAY_ADDRESS", None)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "support.traced_on_ray",
            receiver.endpoint,
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        assert process.returncode == 0, err.decode()[-3000:]
    assert b"TypeError" not in err
    outcome = json.loads(out.decode().splitlines()[-1])
    (spans,) = receiver.traces().values()
    root = only(spans, "generate")
    assert root.trace_id == f"{11:032x}"
    assert root.parent_id not in ("", f"{11:016x}")
    assert outcome["ray_traces"]
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert {span.service for span in spans} == SERVICES
    assert len({span.instance for span in spans}) == outcome["num_processes"] == 3
    tokens = sorted(by_name(spans, "token"), key=lambda s: s.attributes["paceline.token.index"])
    assert [token.attributes["paceline.token.id"] for token in tokens] == outcome["token_ids"]
    assert [t.attributes["paceline.token.origin"] for t in tokens] == outcome["origins"]
    check_durations(tokens, root)
