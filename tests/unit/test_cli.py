"""The `paceline` command against a scripted server over real gRPC."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.scripted_orchestrator import (
    ORIGINS,
    STATS,
    TEXT,
    ScriptedOrchestrator,
    outcome,
    script,
    serving,
)
from typer.testing import CliRunner, Result

from paceline import __version__
from paceline.cli.app import app
from paceline.config import Config
from protos import common_pb2, orchestrator_pb2

COMMAND = [sys.executable, "-c", "from paceline.cli import main; main()"]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def server() -> Iterator[ScriptedOrchestrator]:
    with serving(ScriptedOrchestrator()) as orchestrator:
        yield orchestrator


def invoke(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=text)


def generate(server: ScriptedOrchestrator, *arguments: str, text: str | None = None) -> Result:
    return invoke("generate", *arguments, "--address", server.address, text=text)


def test_the_text_goes_to_standard_output_and_a_summary_to_standard_error(
    server: ScriptedOrchestrator,
) -> None:
    result = generate(server, "hi")
    assert result.exit_code == 0
    assert result.stdout == TEXT + "\n"
    assert result.stderr == (
        "5 tokens (length) · 10.0 tok/s · first token 12 ms · "
        "acceptance rate 75% (6/8) · mean acceptance length 3.00\n"
    )
    assert server.requests[0].prompt == "hi"


def test_without_speculation_the_summary_says_why(server: ScriptedOrchestrator) -> None:
    last = outcome()
    last.outcome.stats.speculation = "unavailable"
    server.responses = [*script()[:2], last]
    assert generate(server, "hi").stderr.endswith("first token 12 ms · speculation unavailable\n")


def test_json_is_exactly_one_object(server: ScriptedOrchestrator) -> None:
    result = generate(server, "hi", "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout) == {
        "text": TEXT,
        "token_ids": [10, 11, 12, 13, 14],
        "origins": ORIGINS,
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 5, "cached_prompt_tokens": 2},
        "stats": {**STATS, "acceptance_rate": 0.75},
    }


def test_json_has_logprobs_when_asked(server: ScriptedOrchestrator) -> None:
    top = orchestrator_pb2.TopLogprob(id=4, text="b", logprob=-1.0)
    token = orchestrator_pb2.Token(
        id=5, text="a", origin=common_pb2.ORIGIN_BONUS, logprob=-0.5, top_logprobs=[top]
    )
    server.responses = [orchestrator_pb2.GenerateResponse(tokens=[token]), outcome(1)]
    value = json.loads(generate(server, "hi", "--json", "--logprobs", "1").stdout)
    assert value["logprobs"] == [-0.5]
    assert value["top_logprobs"] == [[{"id": 4, "text": "b", "logprob": -1.0}]]
    assert server.requests[0].sampling.logprobs == 1


def test_every_option_reaches_the_server(server: ScriptedOrchestrator) -> None:
    options = shlex.split(
        "--temperature 0 --top-k 5 --top-p 0.5 --min-p 0.25 --typical-p 0.75 "
        "--repetition-penalty 1.5 --presence-penalty 1 --frequency-penalty -1 "
        "--logit-bias 5=-2 --logit-bias 6=1 --allowed-token-id 1 --allowed-token-id 5 "
        "--bad-word no --seed 7 --max-tokens 9 --min-tokens 2 --stop one --stop two "
        "--include-stop-in-output --stop-token-id 8 --ignore-eos --no-speculation "
        "--acceptance block --window 3 --num-speculative-tokens 2 "
        "--num-outcome-tokens 5 --logprobs 0 "
        "--cache-salt tenant --prompt-cache-key chat-7"
    )
    assert generate(server, "hi", *options).exit_code == 0
    sampling = common_pb2.SamplingParams(
        temperature=0.0,
        top_k=5,
        top_p=0.5,
        min_p=0.25,
        typical_p=0.75,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias=[
            common_pb2.LogitBias(token_id=5, bias=-2.0),
            common_pb2.LogitBias(token_id=6, bias=1.0),
        ],
        allowed_token_ids=[1, 5],
        seed=7,
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=[8],
        ignore_eos=True,
        acceptance=common_pb2.ACCEPTANCE_BLOCK,
        logprobs=0,
    )
    assert server.requests == [
        orchestrator_pb2.GenerateRequest(
            prompt="hi",
            sampling=sampling,
            speculation=False,
            window=3,
            num_outcome_tokens=5,
            num_speculative_tokens=2,
            stop=["one", "two"],
            include_stop_in_output=True,
            bad_words=["no"],
            cache_salt="tenant",
            prompt_cache_key="chat-7",
        )
    ]


def test_what_is_not_given_is_left_to_the_server(server: ScriptedOrchestrator) -> None:
    generate(server, "hi")
    assert server.requests[0].sampling == common_pb2.SamplingParams(ignore_eos=False)
    assert not server.requests[0].HasField("window")


def test_a_dash_reads_the_prompt_from_standard_input(server: ScriptedOrchestrator) -> None:
    generate(server, "-", text="from é\nstdin")
    assert server.requests[0].prompt == "from é\nstdin"


def test_chat_sends_a_users_message(server: ScriptedOrchestrator) -> None:
    generate(server, "hi", "--chat")
    assert server.requests[0].prompt == ""
    assert server.requests[0].messages == [orchestrator_pb2.ChatMessage(role="user", content="hi")]


def test_color_paints_each_token_by_origin_with_a_legend(server: ScriptedOrchestrator) -> None:
    result = generate(server, "hi", "--color")
    assert result.stdout == ("One\x1b[32m <two\x1b[0m\x1b[36m> 😀\n\x1b[0m[end]\n")
    assert "\x1b[32maccepted\x1b[0m \x1b[33mrecovered\x1b[0m \x1b[36mbonus\x1b[0m" in result.stderr
    assert ANSI.sub("", result.stdout) == TEXT + "\n"


def test_a_pipe_gets_no_colours_unless_asked(server: ScriptedOrchestrator) -> None:
    assert "\x1b" not in generate(server, "hi").stdout
    assert "\x1b" not in generate(server, "hi", "--no-color").stdout


def test_a_terminal_is_not_steered_by_the_models_text(
    server: ScriptedOrchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = orchestrator_pb2.Token(id=5, text="a\x1b[2J\tb\x07", origin=common_pb2.ORIGIN_BONUS)
    server.responses = [orchestrator_pb2.GenerateResponse(tokens=[token]), outcome(1)]
    assert generate(server, "hi").stdout == "a\x1b[2J\tb\x07\n"
    monkeypatch.setattr("paceline.cli.generate._is_terminal", lambda: True)
    assert generate(server, "hi", "--no-color").stdout == "a\ufffd[2J\tb\ufffd\n"
    assert "\x1b[36ma" in generate(server, "hi").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in generate(server, "hi").stdout


def test_an_error_is_one_line_with_its_code(server: ScriptedOrchestrator) -> None:
    server.responses = []
    server.error = (grpc.StatusCode.INVALID_ARGUMENT, "top_p: must be\nin (0, 1]")
    result = generate(server, "hi", "--top-p", "7")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "paceline: error: INVALID_ARGUMENT: top_p: must be in (0, 1]\n"


def test_an_error_after_some_text_stands_on_its_own_line(server: ScriptedOrchestrator) -> None:
    server.responses = script()[:1]
    server.error = (grpc.StatusCode.ABORTED, "the session is lost")
    result = generate(server, "hi")
    assert result.exit_code == 1
    assert result.stdout == "One <two\n"
    assert result.stderr == "paceline: error: ABORTED: the session is lost\n"


def test_a_server_that_is_not_there_is_one_line(server: ScriptedOrchestrator) -> None:
    for command in (["generate", "hi"], ["generate", "hi", "--json"], ["status"]):
        result = invoke(*command, "--address", "127.0.0.1:1")
        assert result.exit_code == 1
        assert result.stderr.startswith("paceline: error: UNAVAILABLE: ")
        assert result.stderr.count("\n") == 1


def test_a_value_that_no_field_can_hold_is_an_error_of_the_field() -> None:
    result = invoke("generate", "hi", "--seed", "-1")
    assert result.exit_code == 1
    assert result.stderr.startswith("paceline: error: INVALID_ARGUMENT: seed: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["generate", "hi", "--acceptance", "always"],
        ["generate", "hi", "--logit-bias", "5"],
        ["generate", "hi", "--no-such-option"],
        ["generate", "hi", "--tls-cert-file", "x"],
        ["generate", "hi", "--address", "127.0.0.1:99999"],
        ["status", "--address", ""],
        ["status", "--address", "127.0.0.1:0"],
        ["generate", "hi", "--timeout", "-1"],
        ["up", "--log-level", "loud"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_ctrl_c_exits_with_130_and_cancels_the_generation() -> None:
    """G01: what has come stays printed."""
    scripted = ScriptedOrchestrator(responses=script()[:1], endless=True)
    with serving(scripted) as server:
        command = [*COMMAND, "generate", "hi", "--address", server.address]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.read(8) == "One <two"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert server.cancelled.wait(10)


def test_ctrl_c_while_the_command_is_being_loaded_exits_with_130() -> None:
    loading = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'paceline.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
    )
    command = [sys.executable, "-c", loading + COMMAND[-1], "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_that_cannot_be_written_is_one_line(
    server: ScriptedOrchestrator, options: tuple[str, ...]
) -> None:
    command = [*COMMAND, "generate", "hi", *options, "--address", server.address]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "paceline: error: standard output: No space left on device"
    )
    assert "Traceback" not in ended.stderr


def test_standard_input_that_is_no_text_is_wrong_usage(server: ScriptedOrchestrator) -> None:
    result = CliRunner().invoke(
        app, ["generate", "-", "--address", server.address], input=b"\xff\xfe"
    )
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr
    assert server.requests == []


def status_response() -> orchestrator_pb2.StatusResponse:
    described = common_pb2.WorkerDescription(
        kind="verifier",
        model="[smol]",
        dtype="bfloat16",
        quantization="none",
        device="cpu",
        kv_pages_total=64,
        kv_pages_used=3,
        live_sessions=2,
    )
    return orchestrator_pb2.StatusResponse(
        model="[smol]",
        context_length=2048,
        live_sessions=2,
        workers=[
            orchestrator_pb2.WorkerStatus(
                role="verifier", address="h:1", connected=True, description=described
            ),
            orchestrator_pb2.WorkerStatus(role="drafter", address="h:2", detail="refused"),
        ],
    )


def test_status_shows_every_worker(server: ScriptedOrchestrator) -> None:
    server.status = status_response()
    result = invoke("status", "--address", server.address)
    assert result.exit_code == 0
    first, header, verifier, drafter = result.stdout.splitlines()
    assert first == "[smol]: context 2048 tokens, 2 live sessions"
    assert header.split()[:3] == ["role", "address", "state"]
    assert " ".join(verifier.split()) == (
        "verifier h:1 connected [smol] bfloat16 cpu 3/64 2 live, 0 waiting"
    )
    assert drafter.split() == ["drafter", "h:2", "refused"]


def test_status_json_is_one_object(server: ScriptedOrchestrator) -> None:
    server.status = status_response()
    value = json.loads(invoke("status", "--json", "--address", server.address).stdout)
    assert value["context_length"] == 2048
    verifier, drafter = value["workers"]
    assert (verifier["is_connected"], verifier["info"]["kv_pages_used"]) == (True, 3)
    assert (drafter["is_connected"], drafter["info"]) == (False, None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Configurations that `up` was started with; it ends at once with exit code 3."""
    configs: list[Config] = []

    def fake_up(config: Config, *, reread: Any) -> int:
        configs.append(config)
        return 3

    module: Any = types.ModuleType("orchestrator.cluster_main")
    module.up = fake_up
    monkeypatch.setitem(sys.modules, "orchestrator.cluster_main", module)
    return configs


def test_up_starts_the_cluster_as_configured(started: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "paceline.yaml"
    file.write_text("orchestrator: {listen: '127.0.0.1:50099'}\n")
    result = invoke("up", "-c", str(file), "--ray-address", "127.0.0.1:6379")
    assert result.exit_code == 3
    assert started[0].orchestrator.listen == "127.0.0.1:50099"
    assert started[0].cluster.ray_address == "127.0.0.1:6379"


def test_up_without_a_file_uses_the_defaults(started: list[Config]) -> None:
    assert invoke("up").exit_code == 3
    assert started == [Config()]


def test_up_names_the_key_of_a_wrong_setting(started: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "paceline.yaml"
    file.write_text("orchestrator: {lissten: x}\n")
    result = invoke("up", "-c", str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith("paceline: error: FAILED_PRECONDITION: ")
    assert "orchestrator.lissten" in result.stderr
    assert started == []


def test_up_without_the_serve_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orchestrator.cluster_main", None)
    result = invoke("up")
    assert result.exit_code == 1
    assert "pip install 'paceline[serve]'" in result.stderr


def test_version_and_help_are_shown() -> None:
    assert invoke("--version").stdout == f"paceline {__version__}\n"
    for command in ([], ["generate"], ["status"], ["top"], ["up"]):
        result = invoke(*command, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.stdout
