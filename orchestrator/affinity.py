"""Where a session's KV may lie already: which worker served a prefix last.

A prompt is known by a chain of hashes, one a whole block of its ids: two prompts have a key in
common exactly if they begin with the same blocks (up to collisions of 128 bits).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Generic, TypeVar

BLOCK_TOKENS = 64
"""Ids a hash covers: a shorter common prefix is not worth a choice."""
MAX_ENTRIES = 32_768
"""Prefixes that are remembered, about 2 M tokens of prompts in some 8 MB."""
_KEY_BYTES = 16

W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Demand:
    """What a session asks of a worker: room for `num_tokens` in its KV pool, and its own prefix."""

    num_tokens: int = 0
    """Prompt and output at most."""
    cache_key: str = ""
    """The client's `prompt_cache_key`; empty without one."""
    prefix: tuple[bytes, ...] = ()
    """Keys of the prompt's whole blocks, the shortest prefix first."""

    @property
    def keys(self) -> Iterable[bytes]:
        """What to look for, the best first: what the client says, then the longest prefix."""
        if self.cache_key:
            yield blake2b(self.cache_key.encode(), digest_size=_KEY_BYTES, person=b"key").digest()
        yield from reversed(self.prefix)

    def grown(self, token_ids: Sequence[int]) -> Demand:
        """The same after the session has come to `token_ids`, which begin with its prompt."""
        return replace(self, prefix=prefix_keys(token_ids, known=self.prefix))


def prefix_keys(token_ids: Sequence[int], known: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """The keys of all whole blocks; `known` are those of the first ones."""
    keys = list(known)
    for start in range(len(known) * BLOCK_TOKENS, len(token_ids), BLOCK_TOKENS):
        block = token_ids[start : start + BLOCK_TOKENS]
        if len(block) < BLOCK_TOKENS:
            break
        before = keys[-1] if keys else b""
        digest = blake2b(array("q", block).tobytes(), digest_size=_KEY_BYTES, key=before)
        keys.append(digest.digest())
    return tuple(keys)


class AffinityMap(Generic[W]):
    """The worker that served each prefix last; the least recently used are forgotten."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._workers: OrderedDict[bytes, W] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workers)

    def remember(self, demand: Demand, worker: W) -> None:
        """`worker` has, or is about to have, the KV of this prefix."""
        # the shortest last: many prompts share it, so it is the last to be forgotten
        for key in demand.keys:
            self._workers[key] = worker
            self._workers.move_to_end(key)
        while len(self._workers) > self._max_entries:
            self._workers.popitem(last=False)

    def find(self, demand: Demand, usable: Callable[[W], bool]) -> W | None:
        """The usable worker that knows the most of the prefix; None if none knows any."""
        for key in demand.keys:
            worker = self._workers.get(key)
            if worker is not None and usable(worker):
                return worker
        return None

    def forget(self, is_gone: Callable[[W], bool]) -> None:
        """Drop what was remembered of workers whose KV is gone."""
        gone = [key for key, worker in self._workers.items() if is_gone(worker)]
        for key in gone:
            del self._workers[key]
