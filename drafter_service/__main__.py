"""Runs one drafter service alone: `python -m drafter_service -c FILE`."""

from drafter_service.service import start
from paceline.rpc.main import run_service

if __name__ == "__main__":
    raise SystemExit(run_service("drafter", start))
