"""Keeps transformers' progress bars and advice out of a service's log."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

from transformers.utils import logging as transformers_logging


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Only exceptions come through. For start-up: the silence is the whole process's."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        # The GGUF reader has a bar of its own that only a redirected stderr silences.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
