"""`paceline scale`: change how many drafters, verifiers or orchestrators a running `up` has."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.run import exits
from paceline.cli.up import cluster_module, load_cluster_config
from paceline.config import MAX_REPLICAS


class Role(str, Enum):
    """What there can be several of; also the names of the sections of `cluster`."""

    DRAFTER = "drafter"
    VERIFIER = "verifier"
    ORCHESTRATOR = "orchestrator"


def scale(
    role: Annotated[
        Role | None,
        typer.Argument(metavar="[ROLE]", help="drafter, verifier or orchestrator."),
    ] = None,
    replicas: Annotated[
        int | None, typer.Argument(metavar="[N]", help="How many there are to be.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="YAML file of the deployment; without ROLE and N its replicas are applied.",
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray cluster, over cluster.ray_address."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="S", help="Wait no longer than S seconds; it is done all the same."),
    ] = None,
) -> None:
    """Change how many replicas a deployment has while it serves.

    New ones get sessions as soon as they run; of those that are too many the sessions end within
    cluster.drain_grace_s or are moved, then they are stopped.
    """
    if (role is None) != (replicas is None) or (role is None and config is None):
        raise typer.BadParameter("give ROLE and N, or only -c FILE to apply its numbers")
    if replicas is not None and not 0 <= replicas <= MAX_REPLICAS:
        raise typer.BadParameter(f"N {replicas}: is not from 0 to {MAX_REPLICAS}")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise typer.BadParameter(f"--timeout {timeout:g}: must be above 0")
    with exits():
        settings = load_cluster_config(config, ray_address)
        if role is not None and replicas is not None:
            wish = {role.value: replicas}
        else:
            wish = {each.value: getattr(settings.cluster, each.value).replicas for each in Role}
        answer = cluster_module("scale").scale(settings, wish, timeout_s=timeout)
    sys.stdout.write(f"{answer}\n")
