"""The orchestrator: keeps drafter and verifier in step for every session and streams to clients."""
