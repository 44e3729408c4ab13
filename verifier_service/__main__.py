"""Runs one verifier service alone: `python -m verifier_service -c FILE`."""

from paceline.rpc.main import run_service
from verifier_service.service import start

if __name__ == "__main__":
    raise SystemExit(run_service("verifier", start))
