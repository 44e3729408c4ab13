"""Finds the KV pages of a prompt's beginning that an earlier session has filled already.

A page is known by the hash of all tokens up to its end, so what it is found by says all that its
keys and values depend on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable

KEY_BYTES = 32
"""Of a cryptographic hash: nobody can make two prompts that share a key."""


def first_key(salt: str) -> bytes:
    """What the first page's key continues. Sessions of different salts never share a page."""
    return blake2b(salt.encode(), digest_size=KEY_BYTES, person=b"paceline salt").digest()


def next_key(key: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of the page that holds `token_ids` after the page of `key`."""
    content = key + array("q", token_ids).tobytes()
    return blake2b(content, digest_size=KEY_BYTES, person=b"paceline page").digest()


class PrefixCache:
    """Shares full pages of final tokens among the tables of one pool, and counts what that saves.

    Switched off, it finds and offers nothing and still counts. Used by one engine thread only.
    """

    def __init__(self, pool: PagePool, *, enabled: bool) -> None:
        self._pool = pool
        self.enabled = enabled
        self._num_reused = 0
        self._num_computed = 0

    @property
    def counters(self) -> dict[str, int]:
        """Raw monotonic counters: prompt tokens found and computed, and pages evicted."""
        return {
            "prefix_tokens_reused": self._num_reused,
            "prefix_tokens_computed": self._num_computed,
            "prefix_pages_evicted": self._pool.num_evicted,
        }

    def keys(self, token_ids: Sequence[int], *, salt: str) -> list[bytes]:
        """The keys of a session's first pages, to open its table with.

        The last token is always left to be computed: its logits are needed.
        """
        keys: list[bytes] = []
        if self.enabled:
            size = self._pool.page_size
            for start in range(0, len(token_ids) - size, size):
                previous = keys[-1] if keys else first_key(salt)
                keys.append(next_key(previous, token_ids[start : start + size]))
        return keys

    def adopt(self, table: PageTable, token_ids: Sequence[int], *, salt: str) -> int:
        """Extend a table by the pages that continue it and are known by now.

        Returns how many tokens they hold. `token_ids` are the session's from the first on, final as
        far as given; the last is left to be computed. A table that has begun a page of its own is
        past adopting.
        """
        if not self.enabled or table.length != table.sealed_length:
            return 0
        size, start = self._pool.page_size, table.length
        while table.length + size < len(token_ids):
            if not table.adopt(self._next_key(table, token_ids, salt)):
                break
        self.count_reused(table.length - start)
        return table.length - start

    def publish(
        self, table: PageTable, token_ids: Sequence[int], num_final: int, *, salt: str
    ) -> None:
        """Let others find a table's full pages among its first `num_final` tokens.

        Call it only after the pass that filled them has succeeded, and for tokens that are never
        taken back.
        """
        if not self.enabled:
            return
        while table.sealed_length + self._pool.page_size <= min(num_final, table.length):
            table.seal(self._next_key(table, token_ids, salt))

    def count_reused(self, num_tokens: int) -> None:
        """Count prompt tokens that were found."""
        self._num_reused += num_tokens

    def count_computed(self, num_tokens: int) -> None:
        """Count prompt tokens that a pass has computed."""
        self._num_computed += num_tokens

    def _next_key(self, table: PageTable, token_ids: Sequence[int], salt: str) -> bytes:
        """The key of the page after the sealed ones."""
        start = table.sealed_length
        previous = table.keys[-1] if table.keys else first_key(salt)
        return next_key(previous, token_ids[start : start + self._pool.page_size])
