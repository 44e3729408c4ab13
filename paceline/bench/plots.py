"""Charts as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from paceline.bench.report import Chart
from paceline.errors import ConfigError

FORMATS = ("png", "svg")


def write_charts(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Draw every chart into `NAME.png` and `NAME.svg`; needs no display.

    Raises `ConfigError` naming the folder if it cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The same figures give the same SVG bytes.
        with mpl.rc_context({"svg.hashsalt": "paceline", "svg.fonttype": "none"}):
            for chart in charts:
                figure = Figure(figsize=(7.0, 4.5), layout="constrained")
                _draw(chart, figure.add_subplot())
                for kind in FORMATS:
                    path = folder / f"{chart.name}.{kind}"
                    figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else {})
                    written.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write plots to {folder}: {error.strerror}") from error
    return written


def _draw(chart: Chart, axes: Any) -> None:
    is_bars = any(isinstance(x, str) for series in chart.series for x in series.xs)
    (_draw_bars if is_bars else _draw_lines)(chart, axes)
    if chart.guide is not None:
        axes.axhline(chart.guide, color="0.5", linewidth=1, linestyle="--")
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    if len(chart.series) > 1:
        axes.legend()


def _draw_lines(chart: Chart, axes: Any) -> None:
    for series in chart.series:
        axes.plot(series.xs, series.ys, marker="o", markersize=4, label=series.label)


def _draw_bars(chart: Chart, axes: Any) -> None:
    names = list(dict.fromkeys(str(x) for series in chart.series for x in series.xs))
    width = 0.8 / len(chart.series)
    for index, series in enumerate(chart.series):
        shift = (index - (len(chart.series) - 1) / 2) * width
        places = [names.index(str(x)) + shift for x in series.xs]
        axes.bar(places, series.ys, width=width, label=series.label)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
