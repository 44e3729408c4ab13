"""Prefixes are found by what they are, shared without a copy, and forgotten when in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.errors import ResourceExhaustedError
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable
from paceline.runtime.prefix_cache import PrefixCache, first_key, next_key

PAGE = 3
SALTS = ("", "a")


@dataclass
class Track:
    """One session: final tokens, drafts after them, and its table."""

    table: PageTable
    tokens: list[int]
    salt: str
    max_length: int
    drafts: list[int] = field(default_factory=list)

    @property
    def sequence(self) -> list[int]:
        return self.tokens + self.drafts


class ReuseMachine(RuleBasedStateMachine):
    """Any order of opening, passes that succeed or fail, commits, rollbacks and endings, in a tiny
    pool, against a plain note of what each slot holds: the tokens up to its own."""

    NUM_PAGES = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.NUM_PAGES, PAGE)
        self.cache = PrefixCache(self.pool, enabled=True)
        self.slots: list[tuple[int, ...]] = [()] * (self.NUM_PAGES * PAGE)
        self.tracks: list[Track] = []

    @property
    def room(self) -> int:
        """Pages that nobody holds or may still take; what rests in the cache is none of them."""
        held = {page for track in self.tracks for page in track.table.pages}
        promised = sum(
            -(-track.max_length // PAGE) - len(track.table.pages) for track in self.tracks
        )
        return self.NUM_PAGES - len(held) - promised

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=10),
        more=st.integers(1, 5),
        salt=st.sampled_from(SALTS),
    )
    def open(self, tokens: list[int], more: int, salt: str) -> None:
        max_length = len(tokens) + more
        keys = self.cache.keys(tokens, salt=salt)
        assert keys == keys_of(tokens[:-1], salt)
        known = list(takewhile(lambda page: page is not None, map(self.pool.find_page, keys)))
        held = {page for track in self.tracks for page in track.table.pages}
        needed = -(-max_length // PAGE) - len(held.intersection(known))
        if needed > self.room:
            with pytest.raises(ResourceExhaustedError):
                self.pool.open_table(max_length, keys)
            return
        room = self.room
        track = Track(self.pool.open_table(max_length, keys), tokens, salt, max_length)
        self.tracks.append(track)
        assert track.table.pages == known
        assert self.pool.available_pages == self.room == room - needed

    def _adopt(self, track: Track) -> None:
        before = track.table.length
        found = self.cache.adopt(track.table, track.tokens, salt=track.salt)
        assert track.table.length == before + found < len(track.tokens)

    @precondition(lambda self: self.tracks)
    @rule(data=st.data(), fails=st.booleans())
    def run_pass(self, data: st.DataObject, fails: bool) -> None:
        """Some of the uncached tokens and drafts; a failed pass has written any part of them."""
        track = data.draw(st.sampled_from(self.tracks))
        self._adopt(track)
        room = track.max_length - len(track.tokens) - 1
        track.drafts = data.draw(st.lists(st.integers(0, 1), max_size=max(room, 0)))
        start = track.table.length
        count = data.draw(st.integers(1, len(track.sequence) - start))
        track.table.grow(count)
        written = data.draw(st.integers(0, count)) if fails else count
        for position in range(start, start + written):
            slot = track.table.slot(position)
            holders = [other for other in self.tracks if slot // PAGE in other.table.pages]
            assert holders == [track], "only a page of its own is ever written"
            self.slots[slot] = tuple(track.sequence[: position + 1])
        if fails:
            track.table.truncate(start)
            track.drafts = []
        elif track.table.length < len(track.tokens):
            track.drafts = []
            self.cache.publish(track.table, track.tokens, track.table.length, salt=track.salt)
        else:
            self._commit(track, data)

    def _commit(self, track: Track, data: st.DataObject) -> None:
        num_judged = min(len(track.drafts), track.table.length - len(track.tokens))
        accepted = data.draw(st.integers(0, num_judged))
        decided = [*track.drafts[:accepted], data.draw(st.integers(0, 1))]
        track.tokens += decided[: track.max_length - len(track.tokens)]
        track.drafts = []
        track.table.truncate(min(track.table.length, len(track.tokens) - 1))
        self.cache.publish(track.table, track.tokens, track.table.length, salt=track.salt)

    @precondition(lambda self: self.tracks)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """As far as a table may be: sealed pages are final."""
        track = data.draw(st.sampled_from(self.tracks))
        track.table.truncate(data.draw(st.integers(track.table.sealed_length, track.table.length)))

    @precondition(lambda self: self.tracks)
    @rule(data=st.data(), distrusted=st.booleans())
    def close(self, data: st.DataObject, distrusted: bool) -> None:
        track = self.tracks.pop(data.draw(st.integers(0, len(self.tracks) - 1)))
        if distrusted:
            track.table.disown()
        pages = track.table.pages
        track.table.free()
        track.table.free()
        if distrusted:
            assert not set(pages) & self.pool._key_of.keys()

    @invariant()
    def every_slot_holds_what_its_session_reads(self) -> None:
        for track in self.tracks:
            for position in range(track.table.length):
                held = self.slots[track.table.slot(position)]
                assert held == tuple(track.sequence[: position + 1])

    @invariant()
    def a_key_says_what_its_page_holds(self) -> None:
        """G08: a page has a key only when all of it was written, by tokens that hash to the key."""
        for page, key in self.pool._key_of.items():
            held = self.slots[page * PAGE : (page + 1) * PAGE]
            whole = held[-1]
            assert [len(history) % PAGE for history in held] == [1, 2, 0]
            assert all(whole[: len(history)] == history for history in held)
            assert key in {keys_of(whole, salt)[-1] for salt in SALTS}

    @invariant()
    def the_books_are_right(self) -> None:
        self.pool.check_integrity()
        assert self.pool.available_pages == self.room
        held = {page for track in self.tracks for page in track.table.pages}
        assert self.pool.used_pages == len(held)

    def teardown(self) -> None:
        for track in self.tracks:
            track.table.free()
        self.pool.check_integrity()
        assert (self.pool.used_pages, self.pool.available_pages) == (0, self.NUM_PAGES)


ReuseMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None
)
test_any_history_keeps_every_sessions_tokens_right = ReuseMachine.TestCase


def keys_of(token_ids: Sequence[int], salt: str = "", size: int = PAGE) -> list[bytes]:
    """The keys of all full pages."""
    keys: list[bytes] = []
    for start in range(0, len(token_ids) - size + 1, size):
        previous = keys[-1] if keys else first_key(salt)
        keys.append(next_key(previous, token_ids[start : start + size]))
    return keys


def filled(cache: PrefixCache, pool: PagePool, token_ids: Sequence[int], salt: str = "") -> None:
    """A session of these tokens that has come and gone."""
    table = pool.open_table(len(token_ids))
    cache.adopt(table, token_ids, salt=salt)
    table.grow(len(token_ids) - table.length)
    cache.publish(table, token_ids, len(token_ids), salt=salt)
    table.free()


def found(cache: PrefixCache, pool: PagePool, token_ids: Sequence[int], salt: str = "") -> int:
    """Tokens that a new session of them would not have to compute."""
    table = pool.open_table(len(token_ids))
    count = cache.adopt(table, token_ids, salt=salt)
    table.free()
    return count


@pytest.fixture
def pool() -> PagePool:
    return PagePool(num_pages=6, page_size=PAGE)


@pytest.fixture
def cache(pool: PagePool) -> PrefixCache:
    return PrefixCache(pool, enabled=True)


@pytest.mark.parametrize(("length", "reused"), [(3, 0), (4, 3), (6, 3), (7, 6), (9, 6), (10, 9)])
def test_full_pages_are_found_and_the_last_token_is_always_left(
    pool: PagePool, cache: PrefixCache, length: int, reused: int
) -> None:
    tokens = list(range(10))
    filled(cache, pool, tokens)

    assert found(cache, pool, tokens[:length]) == reused


def test_what_follows_another_beginning_is_another_page(pool: PagePool, cache: PrefixCache) -> None:
    """The same three tokens at the same place have other keys and values after other tokens."""
    filled(cache, pool, [1, 2, 3, 4, 5, 6, 7])

    assert found(cache, pool, [1, 2, 0, 4, 5, 6, 7]) == 0
    assert found(cache, pool, [1, 2, 3, 4, 5, 0, 7]) == 3
    assert found(cache, pool, [4, 5, 6, 7]) == 0


def test_salts_keep_sessions_apart(pool: PagePool, cache: PrefixCache) -> None:
    filled(cache, pool, [1, 2, 3, 4], salt="tenant")

    assert found(cache, pool, [1, 2, 3, 4], salt="tenant") == 3
    assert found(cache, pool, [1, 2, 3, 4]) == found(cache, pool, [1, 2, 3, 4], salt="other") == 0


@settings(max_examples=50, derandomize=True, deadline=None)
@given(
    left=st.lists(st.integers(0, 3), max_size=9),
    right=st.lists(st.integers(0, 3), max_size=9),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_keys_are_equal_only_for_equal_tokens(
    left: list[int], right: list[int], sizes: tuple[int, int]
) -> None:
    for i, key in enumerate(keys_of(left, size=sizes[0])):
        for j, other in enumerate(keys_of(right, size=sizes[1])):
            same_page = sizes[0] == sizes[1] and i == j
            same = same_page and left[: (i + 1) * sizes[0]] == right[: (j + 1) * sizes[1]]
            assert (key == other) == same


def test_no_salt_can_imitate_a_page() -> None:
    """Bytes that are a page's key and ids, sent as a salt, start another chain than that page."""
    page = next_key(b"k" * 32, [ord("1")])
    spelt = "k" * 32 + "1" + 7 * "\0"

    assert first_key(spelt) != page
    assert len(page) == len(first_key("")) == 32


def test_what_rests_is_room_and_goes_when_the_room_is_needed(
    pool: PagePool, cache: PrefixCache
) -> None:
    """Of what rests, the least recently used goes first, and of a prompt its end."""
    filled(cache, pool, [1] * 7)
    filled(cache, pool, [2] * 7)
    assert (pool.used_pages, pool.resting_pages, pool.available_pages) == (0, 4, 6)
    assert found(cache, pool, [1] * 7) == 6  # so that the other is used less recently

    table = pool.open_table(18)  # the whole pool is room
    table.grow(9)
    assert (pool.resting_pages, cache.counters["prefix_pages_evicted"]) == (3, 1)
    table.free()
    assert found(cache, pool, [2] * 7) == 3
    assert found(cache, pool, [1] * 7) == 6


def test_a_shared_page_stays_until_its_last_session_has_left(
    pool: PagePool, cache: PrefixCache
) -> None:
    tokens = [1, 2, 3, 4]
    filled(cache, pool, tokens)
    first, second = pool.open_table(4), pool.open_table(4)
    assert [cache.adopt(table, tokens, salt="") for table in (first, second)] == [3, 3]
    assert first.pages == second.pages
    assert pool.used_pages == 1
    assert pool.available_pages == 6 - 1 - 2, "one page for both, and one more promised to each"

    first.free()
    hog = pool.open_table(12)
    hog.grow(12)
    assert second.slot(0) // PAGE not in hog.pages
    second.free()
    pool.check_integrity()


def test_pages_that_others_hold_are_no_room_that_a_session_needs(
    pool: PagePool, cache: PrefixCache
) -> None:
    """Five of six pages hold a common beginning; beside it there is room for one more session."""
    tokens = list(range(16))
    first = pool.open_table(18)
    first.grow(16)
    cache.publish(first, tokens, 16, salt="")
    keys = cache.keys(tokens, salt="")
    with pytest.raises(ResourceExhaustedError):
        pool.open_table(18, keys)
    first.free()

    alone = pool.open_table(16, keys)  # six pages; those that rest are room that it takes
    assert (alone.length, pool.available_pages) == (15, 0)
    alone.free()
    short = pool.open_table(15, keys[:4])
    assert pool.available_pages == 1
    beside = pool.open_table(15, keys)
    assert (beside.length, pool.available_pages) == (15, 0)
    for table in (short, beside):
        table.free()
    pool.check_integrity()


def test_a_page_that_rests_is_room_that_its_next_session_takes(
    pool: PagePool, cache: PrefixCache
) -> None:
    """One page is left, and it rests: a session of two pages has no room, though it knows one."""
    filled(cache, pool, [1, 2, 3, 4])
    other = pool.open_table(15)
    keys = cache.keys([1, 2, 3, 4], salt="")
    assert (pool.available_pages, len(keys)) == (1, 1)
    with pytest.raises(ResourceExhaustedError):
        pool.open_table(4, keys)
    other.free()
    assert pool.open_table(4, keys).length == 3
    pool.check_integrity()


def test_two_sessions_that_computed_the_same_page_keep_one_each(
    pool: PagePool, cache: PrefixCache
) -> None:
    tokens = [1, 2, 3, 4]
    tables = [pool.open_table(4), pool.open_table(4)]
    for table in tables:
        table.grow(4)
    for table in tables:
        cache.publish(table, tokens, 4, salt="")
    assert tables[0].pages != tables[1].pages
    for table in tables:
        table.free()

    assert pool.resting_pages == 1
    pool.check_integrity()


def test_a_session_takes_over_what_another_cached_while_it_waited(
    pool: PagePool, cache: PrefixCache
) -> None:
    tokens = list(range(8))
    late = pool.open_table(8)
    assert cache.adopt(late, tokens, salt="") == 0
    filled(cache, pool, tokens[:4])
    assert cache.adopt(late, tokens, salt="") == 3
    filled(cache, pool, tokens[:7])
    assert cache.adopt(late, tokens, salt="") == 3
    late.grow(1)
    assert cache.adopt(late, tokens, salt="") == 0


def test_nothing_is_written_or_taken_back_inside_a_shared_page(
    pool: PagePool, cache: PrefixCache
) -> None:
    filled(cache, pool, [1, 2, 3, 4])
    table = pool.open_table(6)
    cache.adopt(table, [1, 2, 3, 4], salt="")
    table.grow(1)

    table.truncate(3)
    with pytest.raises(AssertionError):
        table.truncate(2)


def test_a_page_that_is_not_full_cannot_be_sealed(pool: PagePool, cache: PrefixCache) -> None:
    table = pool.open_table(6)
    table.grow(5)
    cache.publish(table, [1, 2, 3, 4, 5], 5, salt="")
    assert table.sealed_length == 3
    with pytest.raises(AssertionError, match="full"):
        table.seal(b"key")


def test_only_final_tokens_are_offered(pool: PagePool, cache: PrefixCache) -> None:
    """Six tokens are cached, of which the last four are drafts."""
    table = pool.open_table(6)
    table.grow(6)
    cache.publish(table, [1, 2, 3, 4, 5, 6], 2, salt="")
    assert table.sealed_length == 0
    cache.publish(table, [1, 2, 3, 4, 5, 6], 4, salt="")
    assert table.sealed_length == 3


def test_what_is_not_trusted_is_not_found(pool: PagePool, cache: PrefixCache) -> None:
    filled(cache, pool, [1, 2, 3, 4])
    table = pool.open_table(4)
    cache.adopt(table, [1, 2, 3, 4], salt="")
    table.disown()
    table.free()

    assert found(cache, pool, [1, 2, 3, 4]) == pool.resting_pages == 0
    pool.check_integrity()


def test_switched_off_it_only_counts(pool: PagePool) -> None:
    cache = PrefixCache(pool, enabled=False)
    filled(cache, pool, [1, 2, 3, 4])
    cache.count_computed(4)

    assert found(cache, pool, [1, 2, 3, 4]) == 0
    assert cache.counters == {
        "prefix_tokens_reused": 0,
        "prefix_tokens_computed": 4,
        "prefix_pages_evicted": 0,
    }
