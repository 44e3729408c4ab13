"""`paceline trace`: the drawing as text and as a picture, and the command over real gRPC."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import grpc
import pytest
from rich.console import Console
from support.scripted_orchestrator import ScriptedOrchestrator, outcome, script, serving
from support.spans import ORCHESTRATOR, T0_NS, alone, draft, drafted, span, token
from typer.testing import CliRunner, Result

from paceline.cli.app import app
from paceline.cli.trace_page import page, svg
from paceline.cli.trace_text import drawing, ticks
from paceline.client_values import Token
from paceline.generation import TraceSpan
from paceline.rpc.codec.spans import encode_span
from paceline.timeline import Timeline
from protos import common_pb2, orchestrator_pb2

SVG = "{http://www.w3.org/2000/svg}"

DRAWN = """\
prefill drafter  │    █████
prefill verifier │   ██████████
draft            │               ██████▂
waste            │                     ▆████████
wire             │ ██▄           █                        ██
queue            │  ▄█                     ██▄
verify           │   ██████████              ▄█████████▄█████████
tokens           │               P                        a        .
                 │                                        a
                 │                                        a
                 │                                        a
                 │                                        a
                 │                                        r
                 └┬─────────┬─────────┬─────────┬─────────┬────────┬
              ms  0         20        40        60        80     100

8 tokens · P prefill 1 · a accepted 5 · r recovered 1 · .
autoregressive 1

lane              bars  tokens  total ms  of the time
prefill drafter      1      17      10.0          10%
prefill verifier     1      17      20.0          20%
draft                2       5      12.5          12%
waste                2       5      17.5          18%
wire                 3              11.0          11%
queue                3               9.0           8%
verify               3       8      58.0          58%

mean token latency 12.25 ms = draft 2.50 + wire 1.38 + queue 0.62 +
verify 6.50 + emit 1.25
"""


def as_text(timeline: Timeline, width: int, *, colors: bool = False) -> str:
    """What a terminal of that width shows; trailing blanks are nothing."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colors,
        color_system="standard" if colors else None,
        highlight=False,
    )
    console.print(drawing(timeline, width))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def rows(text: str, name: str) -> list[str]:
    """The columns of a lane's line, and of those without a name below it."""
    found, is_in = [], False
    for line in text.splitlines():
        head, border, cells = line.partition("│")
        is_in = bool(border) and (head.strip() == name or (is_in and not head.strip()))
        if is_in:
            found.append(cells)
    return found


def test_the_lanes_are_drawn_over_a_time_axis_with_their_sums() -> None:
    assert as_text(Timeline.of(drafted()), 68) == DRAWN


@pytest.mark.parametrize("width", [40, 41, 68, 100, 237])
def test_no_line_is_wider_than_asked(width: int) -> None:
    lines = as_text(Timeline.of(drafted()), width).splitlines()
    assert max(map(len, lines)) <= max(width, 53)  # the table of sums is no narrower
    assert max(len(line) for line in lines if "│" in line or "└" in line) <= width


def test_an_empty_timeline_is_drawn_too() -> None:
    assert "bars" in as_text(Timeline.of([]), 60)


def test_a_stretch_is_drawn_over_the_whole_width() -> None:
    (verify,) = rows(as_text(Timeline.of(drafted()).between(55, 75), 68), "verify")
    assert verify == "█" * 50


def test_what_is_shorter_than_a_column_is_seen() -> None:
    text = as_text(Timeline.of([*alone(), draft(50, 50, 8, 1, 1)]), 68)
    assert rows(text, "draft") == [" " * 25 + "▁"]


def test_the_heights_of_a_compressed_lane_say_how_much_was_busy() -> None:
    """400 blocks of 1 ms, each 2 ms after the last, in 40 columns: half of each."""
    blocks = [draft(2 * i, 2 * i + 1, i, 1, 1) for i in range(400)]
    text = as_text(Timeline.of([span(ORCHESTRATOR, "generate", 0, 800), *blocks]), 58)
    assert rows(text, "draft") == ["▄" * 40]


def test_many_tokens_in_a_column_end_in_a_plus() -> None:
    many = [token(i, 50, 50, "accepted") for i in range(9)]
    text = as_text(Timeline.of([span(ORCHESTRATOR, "generate", 0, 100), *many]), 68)
    assert [row.strip() for row in rows(text, "tokens")] == [*"aaaaa", "+"]


def test_a_terminal_gets_colours() -> None:
    text = as_text(Timeline.of(drafted()), 68, colors=True)
    assert re.search(r"\x1b\[31m +▆████████\x1b\[0m", text)  # waste is red
    assert "\x1b[33mr\x1b[0m" in text  # a recovered token, as `generate` paints it


def test_spans_outside_the_request_are_told() -> None:
    skewed = [*alone(), draft(-30, -20, 4, 4, 4), draft(90, 107.5, 8, 1, 1)]
    assert (
        "2 spans lie outside the request, up to 30.0 ms before its start and up to 7.5 ms after "
        "its end, and were cut: the machines' clocks differ\n"
    ) in as_text(Timeline.of(skewed), 200)
    late = [*alone(), draft(90, 107.5, 8, 1, 1)]
    assert "or a worker went on after the answer" in as_text(Timeline.of(late), 200)


def test_ticks_are_round_and_few() -> None:
    assert ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert ticks(41, 81, 5) == [50, 60, 70, 80]
    assert ticks(0, 0.7, 4) == pytest.approx([0, 0.2, 0.4, 0.6])
    assert len(ticks(0, 1_234_567, 8)) <= 9
    assert ticks(3, 3, 5) == [3]


# --- the picture --------------------------------------------------------------------------------


def rects(timeline: Timeline) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg(timeline, title="t")).iter(f"{SVG}rect"))


def test_the_svg_has_one_rect_a_bar_and_a_token_with_words() -> None:
    timeline = Timeline.of(drafted())
    found = rects(timeline)
    num_bars = sum(len(lane.bars) for lane in timeline.lanes)
    assert len(found) == num_bars + 8
    kinds = Counter(rect.get("class") for rect in found)
    assert (kinds["waste"], kinds["verify"], kinds["prefill"]) == (2, 3, 2)
    assert (kinds["accepted"], kinds["recovered"], kinds["other"]) == (5, 1, 2)
    words = [rect.findtext(f"{SVG}title") for rect in found]
    assert "block at 8 of epoch 0: 1 of 4 tokens kept\n2.50 ms, from 40.00 ms" in words


def test_rects_lie_where_their_time_is() -> None:
    """Half of the time is half of the width, and no two tokens lie on each other."""
    timeline = Timeline.of(drafted())
    waste = [rect for rect in rects(timeline) if rect.get("class") == "waste"]
    xs = [float(rect.get("x", "")) for rect in waste]
    widths = [float(rect.get("width", "")) for rect in waste]
    assert xs[0] + widths[0] == pytest.approx(xs[1], abs=0.02)
    assert widths[1] / widths[0] == pytest.approx(10 / 7.5, abs=0.01)
    assert xs[1] == pytest.approx((130 + 1180) / 2, abs=0.01)  # 50 of 100 ms
    tokens = [rect for rect in rects(timeline) if rect.get("height") == "5"]
    assert len({(rect.get("x"), rect.get("y")) for rect in tokens}) == 8


def test_no_text_becomes_markup_or_breaks_the_xml() -> None:
    texts = ["</title><script>alert(1)</script>", "\x00\x1b[2J&amp;\ufffe"]
    picture = svg(Timeline.of(drafted(), texts), title='<b>"&\x00\ufffe')
    root = ElementTree.fromstring(picture)
    assert "<script" not in picture
    assert root.findtext(f"{SVG}title") == '<b>"&\ufffd\ufffd'
    assert any("<script>alert(1)" in (t.text or "") for t in root.iter(f"{SVG}title"))


class Tags(HTMLParser):
    """Names and attributes of a page's elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_has_answer_sums_and_picture() -> None:
    tokens = [
        Token(1, "<i>One", None, (), "prefill"),
        Token(2, " two", None, (), "recovered"),
    ]
    text = page(Timeline.of(drafted()), title="a <b>", tokens=tokens)
    tags = Tags(text)
    names = Counter(name for name, _ in tags.found)
    assert names["svg"] == 1
    assert names["tr"] == 1 + len(Timeline.of(drafted()).lanes)
    assert {"script", "link", "img", "iframe", "i", "b"}.isdisjoint(names)
    assert not any({"href", "src"} & set(attributes) for _, attributes in tags.found)
    assert "url(" not in text
    assert "<i>One two" in tags.text
    assert ("span", {"class": "recovered", "title": "recovered"}) in tags.found
    assert "prefers-color-scheme: dark" in text


def test_the_page_tells_what_was_cut() -> None:
    text = page(Timeline.of([*alone(), draft(-30, -20, 4, 4, 4)]), title="")
    assert "1 span lies outside the request" in text


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ScriptedOrchestrator]:
    with serving(ScriptedOrchestrator(responses=answered(drafted()))) as orchestrator:
        yield orchestrator


def answered(spans: Sequence[TraceSpan]) -> list[orchestrator_pb2.GenerateResponse]:
    last = outcome()
    last.spans.extend(map(encode_span, spans))
    return [*script()[:2], last]


def trace(server: ScriptedOrchestrator, *arguments: str, text: str | None = None) -> Result:
    command = ["trace", *arguments, "--address", server.address]
    return CliRunner().invoke(app, command, input=text)


def test_the_drawing_goes_to_standard_output_and_the_text_to_standard_error(
    server: ScriptedOrchestrator,
) -> None:
    result = trace(server, "hi", "--width", "68")
    assert result.exit_code == 0
    head, body = result.stdout.split("prefill drafter", 1)
    assert " ".join(head.split()).startswith("5 tokens (length) · 10.0 tok/s")
    drawn = "".join(f"{line.rstrip()}\n" for line in f"prefill drafter{body}".splitlines())
    assert drawn == DRAWN
    assert result.stderr == "One <two> 😀\n[end]\n"
    assert "\x1b" not in result.output


def test_every_option_reaches_the_server(server: ScriptedOrchestrator) -> None:
    options = (
        "--max-tokens 9 --temperature 0 --seed 7 --ignore-eos --no-speculation "
        "--acceptance block --window 3 --num-speculative-tokens 2"
    )
    assert trace(server, "-", *options.split(), text="from stdin").exit_code == 0
    assert trace(server, "hi", "--chat").exit_code == 0
    first, second = server.requests
    assert first == orchestrator_pb2.GenerateRequest(
        prompt="from stdin",
        sampling=common_pb2.SamplingParams(
            temperature=0.0,
            seed=7,
            max_tokens=9,
            ignore_eos=True,
            acceptance=common_pb2.ACCEPTANCE_BLOCK,
        ),
        speculation=False,
        window=3,
        num_speculative_tokens=2,
        return_spans=True,
    )
    assert second.messages == [orchestrator_pb2.ChatMessage(role="user", content="hi")]


def test_files_hold_the_picture_the_page_and_all_spans(
    server: ScriptedOrchestrator, tmp_path: Path
) -> None:
    names = ("svg", "html", "json")
    files = [argument for name in names for argument in (f"--{name}", str(tmp_path / name))]
    assert trace(server, "hi", "--from", "28", "--to", "82", *files).exit_code == 0
    picture = ElementTree.fromstring((tmp_path / "svg").read_text())
    part = Timeline.of(drafted()).between(28, 82)
    num_bars = sum(len(lane.bars) for lane in part.lanes)
    assert len(list(picture.iter(f"{SVG}rect"))) == num_bars + 7
    assert "[end]" in (tmp_path / "html").read_text()
    spans = json.loads((tmp_path / "json").read_text())
    assert [TraceSpan(**span) for span in spans] == drafted()
    assert min(span["start_ns"] for span in spans) == T0_NS


def test_an_error_is_one_line_with_its_code(server: ScriptedOrchestrator) -> None:
    server.responses = script()[:1]
    server.error = (grpc.StatusCode.ABORTED, "the session is lost")
    result = trace(server, "hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "One <two\npaceline: error: ABORTED: the session is lost\n"


def test_an_orchestrator_that_returns_no_spans_is_an_error(server: ScriptedOrchestrator) -> None:
    server.responses = script()
    result = trace(server, "hi")
    assert result.exit_code == 1
    assert "paceline: error: INTERNAL: the orchestrator returned no spans" in result.stderr


def test_a_stretch_after_the_end_is_an_error_and_the_spans_are_kept(
    server: ScriptedOrchestrator, tmp_path: Path
) -> None:
    file = tmp_path / "spans.json"
    result = trace(server, "hi", "--from", "500", "--json", str(file))
    assert result.exit_code == 1
    assert result.stderr.endswith("--from 500: nothing to draw, the request took 100.0 ms\n")
    assert len(json.loads(file.read_text())) == len(drafted())


def test_a_file_that_cannot_be_written_is_an_error(
    server: ScriptedOrchestrator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_arguments: object, **_options: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = trace(server, "hi", "--svg", str(tmp_path / "a.svg"))
    assert result.exit_code == 1
    assert result.stderr.endswith("a.svg: No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["hi", "--from", "5", "--to", "5"],
        ["hi", "--from", "-1"],
        ["hi", "--width", "10"],
        ["hi", "--svg", "/no/such/folder/a.svg"],
        ["hi", "--html", "/"],
        ["hi", "--tls-cert-file", "x"],
    ],
)
def test_wrong_usage_exits_with_2_before_anything_is_asked(
    server: ScriptedOrchestrator, arguments: list[str]
) -> None:
    assert trace(server, *arguments).exit_code == 2
    assert server.requests == []


def test_an_answer_without_tokens_is_drawn(server: ScriptedOrchestrator) -> None:
    last = outcome(0)
    last.spans.append(encode_span(alone()[0]))
    server.responses = [last]
    result = trace(server, "hi")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "mean token latency" not in result.stdout


def test_help_has_examples() -> None:
    result = CliRunner().invoke(app, ["trace", "--help"])
    assert "--from 100 --to 200" in result.stdout
