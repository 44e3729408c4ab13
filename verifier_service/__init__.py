"""The verifier service: judges draft blocks of many sessions in one ragged forward pass."""
