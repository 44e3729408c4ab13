"""`paceline up`: place the three services on Ray and keep them until Ctrl-C."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.run import exits
from paceline.config import Config, load_config
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
    log_level: Annotated[str, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = "warning",
) -> None:
    """Start drafters, verifiers and orchestrators on Ray, and stop them all on Ctrl-C.

    SIGHUP applies the numbers of replicas in FILE (but on a terminal it stops, as closing it does);
    `paceline scale` changes them from another program.
    """
    if log_level not in LEVELS:
        raise typer.BadParameter(f"--log-level {log_level}: expected one of {', '.join(LEVELS)}")
    setup_logging(log_level)
    with exits():
        settings = load_cluster_config(config, ray_address)
        module = cluster_module("up")
        reread = None if config is None else partial(load_cluster_config, config, ray_address)
        code = int(module.up(settings, reread=reread))
    raise typer.Exit(code)


def load_cluster_config(path: Path | None, ray_address: str | None) -> Config:
    """The file's settings, with another Ray address if one is given. Raises `ConfigError`."""
    settings = load_config(path)
    if ray_address is None:
        return settings
    cluster = settings.cluster.model_copy(update={"ray_address": ray_address})
    return settings.model_copy(update={"cluster": cluster})


def cluster_module(command: str) -> Any:
    """What runs on Ray. Raises `StartupError` naming what has to be installed for it."""
    try:
        return importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        raise StartupError(
            f"`paceline {command}` needs the packages of the serve extra ({error.name} is missing):"
            " pip install 'paceline[serve]'"
        ) from error
