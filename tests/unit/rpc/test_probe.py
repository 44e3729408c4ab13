"""The health probe of containers and pods, against real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.config import Config, parse_config
from paceline.errors import ConfigError
from paceline.rpc.credentials import load_credentials
from paceline.rpc.probe import address_of, health_of, main
from paceline.rpc.server import ServerShell

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def serving(config: Config | None = None, *, healthy: bool = True) -> AsyncIterator[str]:
    """The address of a server without services."""
    config = Config() if config is None else config
    credentials = load_credentials(config.security)
    shell = ServerShell("127.0.0.1:0", {}, credentials=credentials, limits=config.grpc)
    await shell.start()
    await shell.set_serving(serving=healthy)
    try:
        yield shell.address
    finally:
        await shell.stop(0)


async def probed(*arguments: str) -> int:
    """`main` in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(main, [*arguments, "--timeout", "20"])


async def test_a_service_that_serves_is_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as address:
        assert await probed(address) == 0
    assert capsys.readouterr().out == f"{address}: SERVING\n"


async def test_one_that_starts_or_drains_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(healthy=False) as address:
        assert await probed(address) == 1
    assert capsys.readouterr().out == f"{address}: NOT_SERVING\n"


async def test_one_that_is_gone_is_code_1_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as address:
        pass
    assert await probed(address) == 1
    assert capsys.readouterr().out.startswith(f"{address}: UNAVAILABLE: ")


async def test_a_role_is_asked_where_the_file_says_that_it_listens(tmp_path: Path) -> None:
    async with serving() as address:
        listen = f"0.0.0.0:{address.rpartition(':')[2]}"
        path = tmp_path / "paceline.yaml"
        path.write_text(yaml.safe_dump({"verifier": {"listen": listen}}))
        assert await probed("verifier", "-c", str(path)) == 0


async def test_a_token_of_the_file_does_no_harm(tmp_path: Path) -> None:
    """Health is exempt from tokens: a probe without one works as well."""
    (tmp_path / "token").write_text("s3cret\n")
    token = {"token_file": str(tmp_path / "token")}
    config = parse_config({"security": token}, source="test")
    async with serving(config) as address:
        assert await health_of(address, config, timeout_s=20) == "SERVING"
        assert await health_of(address, Config(), timeout_s=20) == "SERVING"


@pytest.mark.parametrize(
    ("listen", "asked"),
    [
        ("0.0.0.0:50052", "127.0.0.1:50052"),
        ("[::]:50052", "[::1]:50052"),
        ("127.0.0.1:50052", "127.0.0.1:50052"),
        ("verifier.example.com:1", "verifier.example.com:1"),
        ("[fe80::1]:2", "[fe80::1]:2"),
    ],
)
def test_all_addresses_are_asked_on_loopback(listen: str, asked: str) -> None:
    config = parse_config({"verifier": {"listen": listen}}, source="test")
    assert address_of("verifier", config) == asked


@pytest.mark.parametrize("target", ["nobody", "1.2.3.4", "::1:5", "host:x"])
def test_a_target_that_is_neither_role_nor_address_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="drafter, verifier, orchestrator"):
        address_of(target, Config())


def test_a_port_that_the_system_chooses_cannot_be_asked() -> None:
    config = parse_config({"verifier": {"listen": "127.0.0.1:0"}}, source="test")
    with pytest.raises(ConfigError, match="port 0"):
        address_of("verifier", config)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"verifierr": {}}, "verifierr: unknown key"),
        ({"security": {"token_file": "/nowhere/token"}}, "security.token_file: cannot read"),
    ],
)
def test_settings_that_cannot_work_are_code_2_and_one_line(
    tmp_path: Path, document: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paceline.yaml"
    path.write_text(yaml.safe_dump(document))
    assert main(["verifier", "-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


async def test_it_runs_as_a_module_and_loads_no_model_library() -> None:
    """A probe every few seconds may not cost what a start of torch does."""
    script = (
        "import sys\n"
        "from paceline.rpc.probe import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'ray', 'numpy'} & set(sys.modules)\n"
        "raise SystemExit(code if not heavy else f'loads {heavy}')\n"
    )
    async with serving() as address:
        for start in (["-c", script], ["-m", "paceline.rpc.probe"]):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, *start, address, "--timeout", "20"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (done.returncode, done.stdout) == (0, f"{address}: SERVING\n"), done.stderr
