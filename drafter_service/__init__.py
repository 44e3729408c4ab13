"""The drafter service: guesses tokens for many sessions, a window ahead of the verifier."""
