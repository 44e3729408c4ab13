"""docs/deploy.md says what is true: its commands, settings, files, ports and messages exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml
from support.deploy_files import DEPLOY, ROOT, check, compose, is_ours, simple_commands

from paceline.config import Config, load_config, parse_config

PAGE = ROOT / "docs" / "deploy.md"
TEXT = PAGE.read_text()
SERVICES = compose()["services"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    return [
        command
        for block in blocks("sh")
        for line in block.splitlines()
        for command in simple_commands(line)
    ]


def inline_commands() -> Iterator[str]:
    """Commands in running text, where every argument is given."""
    for text in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)):
        if re.match(r"(paceline|ray|python -m) ", text) and "..." not in text:
            yield text


def settings_named() -> set[str]:
    """`section.key` in running text."""
    sections = "|".join(Config.model_fields)
    return set(re.findall(rf"`((?:{sections})\.[a-z_.]+)`", TEXT))


@pytest.mark.parametrize("command", [c for c in commands() if is_ours(c)], ids=" ".join)
def test_every_command_of_ours_and_of_ray_is_understood(command: list[str]) -> None:
    check(command)
    if command[:2] == ["ray", "exec"]:
        for inner in simple_commands(command[-1]):
            check(inner)


def test_every_other_program_is_one_that_the_page_asks_for() -> None:
    programs = {command[0] for command in commands() if not is_ours(command)}
    assert programs == {"pip", "docker", "kubectl", "openssl", "mkdir", "printf", "chmod"}


@pytest.mark.parametrize("text", list(inline_commands()))
def test_every_command_in_running_text_is_understood(text: str) -> None:
    # Names of commands without what they need are names, not commands.
    if text in {
        "ray up",
        "ray down",
        "ray start",
        "ray attach --tmux",
        "ray up -y",
        "ray health-check",
    }:
        return
    (command,) = simple_commands(text)
    check(command)


@pytest.mark.parametrize("block", blocks("yaml"))
def test_every_snippet_is_a_configuration(block: str) -> None:
    data = yaml.safe_load(block)
    config = parse_config(data, source="docs/deploy.md")
    assert config != Config()


def test_the_security_section_is_that_of_the_configuration() -> None:
    (section,) = [data for block in blocks("yaml") if "security" in (data := yaml.safe_load(block))]
    shown = parse_config(section, source="docs/deploy.md").security
    assert shown == load_config(DEPLOY / "config" / "cluster.yaml").security


def test_every_setting_named_exists() -> None:
    assert len(settings_named()) >= 4
    for name in settings_named():
        value: object = Config
        for part in name.split("."):
            fields = getattr(value, "model_fields", {})
            assert part in fields, name
            value = fields[part].annotation


def test_every_file_named_exists() -> None:
    paths = set(re.findall(r"(?<![\w/.-])(?:deploy|docs)/[\w./-]+[\w]", TEXT))
    made = {path for path in paths if path.startswith(("deploy/secrets", "deploy/ca"))}
    assert len(paths - made) > 10
    for path in paths - made:
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link


def test_default_ports_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \|", TEXT, flags=re.MULTILINE))
    for role in ("orchestrator", "drafter", "verifier"):
        assert getattr(Config(), role).listen == f"127.0.0.1:{rows[role]}"


def test_every_address_to_open_in_a_browser_is_published() -> None:
    published = {
        f"http://{port.rpartition(':')[0]}"
        for s in SERVICES.values()
        for port in s.get("ports", ())
    }
    urls = set(re.findall(r"<(http://127[^>]+)>", TEXT))
    assert len(urls) == 3
    assert urls <= published


def test_every_service_named_to_compose_exists() -> None:
    for command in commands():
        if command[:2] == ["docker", "compose"] and ("exec" in command or "logs" in command):
            verb = "exec" if "exec" in command else "logs"
            assert command[command.index(verb) + 1] in SERVICES


def test_every_message_of_the_troubleshooting_table_is_one_that_the_code_says() -> None:
    source = "\n".join(
        path.read_text()
        for package in ("paceline", "orchestrator")
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    table = TEXT[TEXT.index("## Troubleshooting") :]
    messages = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    assert len(messages) >= 7
    for message in messages:
        assert message in joined, message


def test_the_grace_of_a_drain_is_that_of_the_code() -> None:
    from orchestrator.cluster import STOP_GRACE_S

    assert f"running answers get {STOP_GRACE_S:g} s" in TEXT.replace("\n", " ")


def test_kubernetes_secrets_are_made_under_the_names_that_the_pods_ask_for() -> None:
    manifest = (DEPLOY / "kuberay" / "cluster.yaml").read_text()
    made = [c[c.index("generic") + 1] for c in commands() if "generic" in c]
    assert made == ["paceline-tls", "paceline-token"]
    for name in (*made, "paceline-hub"):
        assert f"name: {name}" in manifest
        assert name in TEXT
