"""The `paceline` command: `generate` and `status` speak to an orchestrator, `up` starts one."""

__all__ = ["main"]


def main() -> None:
    """Run the command line; see `paceline.cli.app`."""
    try:
        from paceline.cli.app import main as run  # noqa: PLC0415  (Ctrl-C may come as early as this)

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
