"""The `paceline` command: `generate` and `status` speak to an orchestrator, `up` starts one."""

from paceline.cli.app import main

__all__ = ["main"]
