"""Sampling: parameters, probabilities, draws and acceptance rules, as pure functions."""
