"""`paceline up`: place the three services on Ray and keep them until Ctrl-C."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.run import exits
from paceline.config import load_config
from paceline.errors import StartupError
from paceline.logs import LEVELS, setup_logging

_MODULE = "orchestrator.cluster_main"
"""Named, not imported: the package sits above this one and needs the `serve` extra."""


def up(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="YAML file; without it, defaults."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A running Ray cluster, over cluster.ray_address."),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(LEVELS)}; without it, telemetry.logs.level or warning."
        ),
    ] = None,
) -> None:
    """Start drafters, verifiers and an orchestrator on Ray, and stop them all on Ctrl-C."""
    if log_level is not None and log_level not in LEVELS:
        raise typer.BadParameter(f"--log-level {log_level}: expected one of {', '.join(LEVELS)}")
    with exits():
        settings = load_config(config)
        logs = settings.telemetry.logs
        # what happens is printed anyway, so the log of this process is short unless asked for
        configured = logs.level if "level" in logs.model_fields_set else "warning"
        setup_logging(log_level or configured, logs.format)
        if ray_address is not None:
            cluster = settings.cluster.model_copy(update={"ray_address": ray_address})
            settings = settings.model_copy(update={"cluster": cluster})
        try:
            module = importlib.import_module(_MODULE)
        except ModuleNotFoundError as error:
            raise StartupError(
                f"`paceline up` needs the packages of the serve extra ({error.name} is missing): "
                "pip install 'paceline[serve]'"
            ) from error
        code = int(module.up(settings))
    raise typer.Exit(code)
