"""Sampling: parameters, probabilities, draws and acceptance rules. Pure functions; randomness is an argument."""
