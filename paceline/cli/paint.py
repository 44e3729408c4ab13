"""Tokens on a terminal: coloured by origin, and unable to steer the terminal."""

from __future__ import annotations

from rich.color import ColorSystem
from rich.style import Style

from paceline.client_values import Stats, Token
from paceline.generation import Usage

STYLES = {
    "accepted": Style.parse("green"),
    "recovered": Style.parse("yellow"),
    "bonus": Style.parse("cyan"),
    "prefill": Style.null(),
    "autoregressive": Style.null(),
}

# Escape sequences in a model's text must not reach a terminal; line breaks and tabs may.
_CONTROLS = {
    code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def paint(text: str, origin: str) -> str:
    """`text` in the colour of `origin`, as ANSI escapes."""
    return STYLES[origin].render(text, color_system=ColorSystem.STANDARD)


def token_text(token: Token, *, color: bool, terminal: bool) -> str:
    """What to write for a token."""
    text = token.text.translate(_CONTROLS) if terminal else token.text
    return paint(text, token.origin) if color and text else text


def legend() -> str:
    """The colours by name."""
    named = ("accepted", "recovered", "bonus")
    return " ".join([*(paint(name, name) for name in named), "prefill/autoregressive"])


def summary(usage: Usage, stats: Stats, finish_reason: str) -> str:
    """One line about a generation."""
    seconds = stats.total_ms / 1e3
    speed = f"{usage.completion_tokens / seconds:.1f}" if seconds > 0 else "–"
    parts = [
        f"{usage.completion_tokens} tokens ({finish_reason})",
        f"{speed} tok/s",
        f"first token {stats.time_to_first_token_ms:.0f} ms",
    ]
    if stats.speculation == "on":
        parts += [
            f"acceptance rate {stats.acceptance_rate:.0%} ({stats.accepted}/{stats.judged})",
            f"mean acceptance length {stats.mean_acceptance_length:.2f}",
        ]
    else:
        parts.append(f"speculation {stats.speculation}")
    return " · ".join(parts)
