"""Paceline: lossless distributed speculative decoding. What the three services share."""

__version__ = "0.1.0"
