"""Runs the orchestrator alone, over workers at fixed addresses: `python -m orchestrator`."""

from orchestrator.service import start
from paceline.rpc.main import run_service

if __name__ == "__main__":
    raise SystemExit(run_service("orchestrator", start))
