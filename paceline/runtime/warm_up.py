"""Passes before the first request: what a model does only once is not measured as what it costs.

The first passes of a process take many times as long as later ones: kernels are loaded and chosen,
threads started, memory is touched for the first time. Whoever is served first would wait for that,
and a window controller that begins with such a pass would hold speculation to be too dear.
"""

from __future__ import annotations

from paceline.runtime.runner import Chunk, Runner

PROMPT_TOKENS = 64
DECODED = (1, 2, 4, 8)
"""New tokens of the passes that follow the prompt."""
ROUNDS = 2


def warm_up(runner: Runner) -> None:
    """Run a made-up session; as much of it as context and pool have room for.

    To be called by the thread that will run the model: others have other threads to compute with.
    """
    pool = runner.pool
    room = min(runner.context_length or PROMPT_TOKENS, pool.num_pages * pool.page_size)
    prompt_tokens = min(PROMPT_TOKENS, room - max(DECODED))
    if prompt_tokens < 1:
        return
    table = pool.open_table(prompt_tokens + max(DECODED))
    try:
        for _ in range(ROUNDS):
            for number in (prompt_tokens, *DECODED):
                ids = [position % runner.vocab_size for position in range(number)]
                logits = runner.forward([Chunk(table, ids, 1)])
                logits.argmax(dim=1).tolist()  # waits for the device
                table.truncate(0 if number == DECODED[-1] else prompt_tokens)
    finally:
        table.free()
