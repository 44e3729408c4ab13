"""Channels belong to their loop and process, and connect again after a break."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import time
from typing import Any

import pytest
from rpc_fakes import INFO, LIMITS, Peer, connected, open_session, running_drafter

from paceline.errors import UnavailableError
from paceline.rpc.channel import open_channel
from paceline.rpc.codec.describe import decode_worker_info
from paceline.rpc.credentials import NO_CREDENTIALS
from protos import common_pb2


async def describe_once() -> Any:
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        return decode_worker_info(await stub.Describe(common_pb2.DescribeRequest(), timeout=5))


def test_two_event_loops_in_a_row_each_work() -> None:
    """G06: a channel belongs to the loop that opened it."""
    assert asyncio.run(describe_once()) == INFO
    assert asyncio.run(describe_once()) == INFO


def test_a_channel_outside_a_loop_is_refused_at_once() -> None:
    """G06."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        open_channel("127.0.0.1:1", NO_CREDENTIALS, LIMITS)


def child_describes(queue: Any) -> None:
    queue.put(asyncio.run(describe_once()))


async def test_a_process_spawned_beside_a_live_channel_works() -> None:
    """G06: spawn, never fork, once grpc runs."""
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        await stub.Describe(common_pb2.DescribeRequest(), timeout=5)
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        child = context.Process(target=child_describes, args=(queue,))
        child.start()
        await asyncio.to_thread(child.join, 60)
        assert child.exitcode == 0
        assert queue.get() == INFO
        queue.close()
        child.close()
        await stub.Describe(common_pb2.DescribeRequest(), timeout=5)


def test_importing_the_wire_layer_starts_no_thread_of_grpc() -> None:
    """G06: a process may still fork after the imports."""
    code = (
        "import os, threading\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import paceline.rpc.server, paceline.rpc.client_link, paceline.rpc.channel\n"
        "assert len(os.listdir('/proc/self/task')) == before, threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_clients_half_of_the_wire_layer_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "import paceline.rpc.channel, paceline.rpc.status, paceline.rpc.credentials\n"
        "import paceline.rpc.codec.sampling, paceline.rpc.codec.describe\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_a_server_that_comes_back_is_found_again_within_seconds() -> None:
    async with running_drafter() as drafter:
        address = drafter.shell.address
        channel = open_channel(address, NO_CREDENTIALS, LIMITS)
        await channel.channel_ready()
    async with connected(address) as stub:
        with pytest.raises(UnavailableError):
            await Peer(stub).link.start(5)
        async with running_drafter(listen=address):
            began = time.monotonic()
            while True:
                peer = Peer(stub)
                try:
                    await peer.link.start(5)
                    break
                except UnavailableError:
                    assert time.monotonic() - began < 8
                    await asyncio.sleep(0.05)
            peer.link.send(open_session(1))
            await peer.heard(1)
            await peer.link.close()
    await channel.close(None)


async def test_channels_to_one_address_share_no_connection() -> None:
    async with running_drafter() as drafter:
        peers: list[str] = []

        async def look(context: Any) -> None:
            peers.append(context.peer())

        drafter.servicer.fail = look
        for _ in range(2):
            async with (
                connected(drafter.shell.address) as first,
                connected(drafter.shell.address) as second,
            ):
                for stub in (first, second):
                    await stub.Describe(common_pb2.DescribeRequest(), timeout=5)
        assert len(set(peers)) == 4


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with running_drafter() as drafter, connected(drafter.shell.address) as stub:
        await stub.Describe(common_pb2.DescribeRequest(), timeout=5)
