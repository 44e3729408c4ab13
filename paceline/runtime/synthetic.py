"""A pair of models without weights, whose acceptance rate is exactly the one asked for.

Speculation is measured with it: how often a draft is right is a setting, and what a pass costs is
another (`emulated.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from paceline.config.models import acceptance_rate
from paceline.errors import ConfigError
from paceline.runtime.page_pool import PagePool
from paceline.runtime.page_table import PageTable, fork_all
from paceline.runtime.runner import Chunk

LIKELY = (0.2003, 0.2001, 0.1999, 0.1997, 0.08, 0.06, 0.04, 0.02)
"""Target probabilities of the ids that may come next, likeliest first."""
NUM_DECOYS = 48
"""Ids that only the draft may say."""
MIN_PLAIN_IDS = len(LIKELY) + NUM_DECOYS
MIN_NEAR_ACCEPTANCE = 0.07
"""From here on another guess of the draft can be the target's first: below, decoys come before."""

_SHARES = ((0.55, 0.45), (0.36, 0.33, 0.31))
"""Of the mass of the draft's likeliest ids where it lays little on all of them, by which of its
other guesses is the target's likeliest: that is the last of them."""
_RARE = 1e-20
"""Weight of every other id: masks and biases always leave something to choose from."""
_MASK = 2**64 - 1
_ROTATION_SALT = 0xD1B5_4A32_D192_ED03
_COIN_SALT = 0x8CB9_2BA7_2F3D_8DD7
_OTHER_SALTS = (0x6C62_272E_07BB_0142, 0x2545_F491_4F6C_DD1D)


class AcceptanceSchedule:
    """The acceptance rate of a draft by the position of its token in the sequence."""

    def __init__(self, acceptance: float, changes: Sequence[tuple[int, float]] = ()) -> None:
        """`acceptance`, and from each position of `changes` on the rate given there.

        Raises `ConfigError` for a rate that no pair has, or positions that do not rise.
        """
        self._starts = [0, *(position for position, _ in changes)]
        self.rates = (acceptance, *(rate for _, rate in changes))
        try:
            for rate in self.rates:
                acceptance_rate(rate)
        except ValueError as error:
            raise ConfigError(f"model.acceptance: {error}") from error
        if any(later <= earlier for earlier, later in pairwise(self._starts)):
            raise ConfigError("model.acceptance_changes: positions must rise, from 1 on")

    def index_at(self, position: int) -> int:
        """Which of `rates` holds there."""
        return bisect_right(self._starts, position) - 1

    def rate_at(self, position: int) -> float:
        return self.rates[self.index_at(position)]


class SyntheticLaw:
    """The next-token law of one model of the pair: a function of a hash of the token history.

    The target says one of eight ids with the probabilities `LIKELY`; which ids is a hash of the
    history. The draft says the same ids with probabilities that are nowhere larger and sum to the
    acceptance rate α, and lays the rest of its mass evenly on 48 decoys. So at every position

    - the sum over all ids of min(target, draft) is α: the probability that a draft sampled at
      temperature 1 is accepted under `rejection` (Leviathan et al. 2023), whatever came before;
    - the draft's argmax is the target's with probability α, by a coin that is another hash of the
      history. Heads fills the α up from the target's likeliest id down; tails gives that id only
      what the others leave. The target's four likeliest ids nearly tie, so that this needs to
      move next to nothing, and both statements hold at once for any coin;
    - where the draft's argmax is wrong, its next likeliest id is the target's argmax with the
      probability `second_guess`, and where that is wrong too, the one after it with the probability
      `third_guess`, by further hashes, for α of at least 0.07.

    (A plain mixture of target and noise would keep the target's argmax always.) Under another
    temperature, filters, `block` or `coupled` the rate is another one.
    """

    def __init__(
        self,
        *,
        seed: int,
        num_plain_ids: int,
        vocab_size: int,
        acceptance: AcceptanceSchedule | None = None,
        second_guess: float = 0.0,
        third_guess: float = 0.0,
    ) -> None:
        """Without `acceptance` it is the target. Ids from `num_plain_ids` on are never said.

        A draft has the seed of its target.
        """
        assert MIN_PLAIN_IDS <= num_plain_ids <= vocab_size
        self.vocab_size = vocab_size
        self.empty_state = mix(seed & _MASK)
        """The state before the first token."""
        self._num_plain_ids = num_plain_ids
        self._acceptance = acceptance
        self._other_guesses = (second_guess, third_guess)
        profiles: list[tuple[float, ...]] = [LIKELY]
        if acceptance is not None:
            profiles = [profile(rate) for rate in acceptance.rates for profile in _PROFILES]
        twice = torch.stack([_log_profile(profile, num_plain_ids) for profile in profiles])
        # [profile, rotation, id]; a view that repeats the same numbers, so no width is too large
        self._rotations = twice.repeat(1, 2).unfold(1, num_plain_ids, 1)
        self._num_special = vocab_size - num_plain_ids

    def next_state(self, state: int, token_id: int, earlier: int) -> int:
        """The state after one token more. `earlier` is the state at `looks_back`, 0 without one."""
        return mix((state ^ (earlier >> 1)) + token_id)

    def states(self, token_ids: Sequence[int]) -> list[int]:
        """The state after each token of a history; what a runner keeps in its slots."""
        states: list[int] = []
        state = self.empty_state
        for position, token_id in enumerate(token_ids):
            earlier = states[looks_back(state, position)] if position else 0
            state = self.next_state(state, token_id, earlier)
            states.append(state)
        return states

    def agrees(self, state: int, length: int) -> bool:
        """Whether the argmax after a history of this state and length is the target's."""
        if self._acceptance is None:
            return True
        return _coin(state, _COIN_SALT) < self._acceptance.rate_at(length)

    def right_other(self, state: int, length: int) -> int | None:
        """If it is not, which of the next likeliest ids is, from 0; None for none of two."""
        if self._acceptance is None or self._acceptance.rate_at(length) < MIN_NEAR_ACCEPTANCE:
            return None
        guesses = zip(self._other_guesses, _OTHER_SALTS, strict=True)
        hits = (which for which, (rate, salt) in enumerate(guesses) if _coin(state, salt) < rate)
        return next(hits, None)

    def favourite(self, state: int) -> int:
        """The target's argmax after a history of this state."""
        return mix(state ^ _ROTATION_SALT) % self._num_plain_ids

    def logits(self, histories: Sequence[tuple[int, int]]) -> Tensor:
        """Log-probabilities float32 `[n, vocab_size]` after histories of (state, length)."""
        if not histories:
            return torch.empty(0, self.vocab_size)
        profiles = [self._profile(state, length) for state, length in histories]
        shifts = [-self.favourite(state) % self._num_plain_ids for state, _ in histories]
        rows = self._rotations[torch.tensor(profiles), torch.tensor(shifts)]
        rare = float(self._rotations[0].amin())
        return torch.nn.functional.pad(rows, (0, self._num_special), value=rare)

    def _profile(self, state: int, length: int) -> int:
        if self._acceptance is None:
            return 0
        kind = _HEADS
        if not self.agrees(state, length):
            other = self.right_other(state, length)
            kind = _TAILS if other is None else other
        return len(_PROFILES) * self._acceptance.index_at(length) + kind


class SyntheticRunner:
    """A `Runner` of a `SyntheticLaw`: no weights and no KV tensors, but real pages.

    Each slot holds the state after its token, made from the states in the slots of the token
    before and of one earlier token that the state chooses. So a fault in paging, positions or
    rollback changes the output as it would a real model's, at a constant cost a token.
    """

    def __init__(
        self, law: SyntheticLaw, *, context_length: int, num_pages: int, page_size: int
    ) -> None:
        self.pool = PagePool(num_pages, page_size)
        self.vocab_size = law.vocab_size
        self.context_length = context_length
        self._law = law
        self._states = array("Q", bytes(8 * num_pages * page_size))

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Log-probabilities float32 `[sum of num_logits, vocab_size]`; see `Runner`."""
        lengths = [chunk.table.length for chunk in chunks]
        histories: list[tuple[int, int]] = []
        try:
            for chunk in chunks:
                histories += self._run(chunk)
        except BaseException:
            for chunk, length in zip(chunks, lengths, strict=True):
                chunk.table.truncate(length)
            raise
        return self._law.logits(histories)

    def _run(self, chunk: Chunk) -> list[tuple[int, int]]:
        """Take in a chunk; the (state, length) of the histories whose logits are asked for."""
        assert 0 <= chunk.num_logits <= len(chunk.token_ids) > 0
        law, states, table = self._law, self._states, chunk.table
        start = table.length
        table.grow(len(chunk.token_ids))
        root = table.length - (0 if chunk.tree is None else len(chunk.tree))
        histories = []
        for place, token_id in enumerate(chunk.token_ids, start):
            path: tuple[int, ...] = ()
            if chunk.tree is not None and place >= root:
                path = chunk.tree.paths[place - root]
            position = root + len(path) - 1 if path else place
            state, earlier = law.empty_state, 0
            if position:
                state = states[table.slot(_place(position - 1, root, path))]
                earlier = states[table.slot(_place(looks_back(state, position), root, path))]
            state = law.next_state(state, token_id, earlier)
            states[table.slot(place)] = state
            histories.append((state, position + 1))
        return histories[len(histories) - chunk.num_logits :]

    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        """Keep one path of a tree; see `Runner`."""
        for source, target in table.keep(start, nodes):
            self._states[target] = self._states[source]

    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        """Tables that continue another; see `Runner`."""
        return fork_all(table, lengths, num_tokens, copy=self._copy)

    def _copy(self, pages: Sequence[tuple[int, int]]) -> None:
        size = self.pool.page_size
        for source, target in pages:
            held = self._states[source * size : (source + 1) * size]
            self._states[target * size : (target + 1) * size] = held


def _place(position: int, root: int, path: Sequence[int]) -> int:
    """Where in its table a position stands, seen from a node at the end of a path, or without."""
    return root + path[position - root] if path and position >= root else position


def heads_profile(acceptance: float) -> tuple[float, ...]:
    """Draft probabilities of the ids of `LIKELY`, in its order, then of the decoys."""
    return _filled(acceptance, LIKELY, range(len(LIKELY)))


def tails_profile(acceptance: float) -> tuple[float, ...]:
    """The same where the target's likeliest id gets what the others leave."""
    return _filled(acceptance, LIKELY, (*range(1, len(LIKELY)), 0))


def near_profile(acceptance: float, which: int) -> tuple[float, ...]:
    """The same where that is the next likeliest behind the first (0), or the one after it (1)."""
    shares = _SHARES[which]
    before = range(1, len(shares))
    most = list(LIKELY)
    for rank, share in zip(before, shares, strict=False):
        most[rank] = min(LIKELY[rank], share * acceptance)
    last = len(shares)
    most[0] = min((LIKELY[last - 1] + LIKELY[last]) / 2, shares[-1] * acceptance)
    return _filled(acceptance, most, (*before, 0, *range(last, len(LIKELY))))


_PROFILES = (
    partial(near_profile, which=0),
    partial(near_profile, which=1),
    tails_profile,
    heads_profile,
)
_TAILS, _HEADS = 2, 3


def _filled(acceptance: float, most: Sequence[float], order: Sequence[int]) -> tuple[float, ...]:
    """Probabilities that sum to the acceptance rate, laid on the ids in an order."""
    kept = [0.0] * len(LIKELY)
    left = acceptance
    for rank in order:
        kept[rank] = min(most[rank], left)
        left -= kept[rank]
    return (*kept, *[(1.0 - acceptance) / NUM_DECOYS] * NUM_DECOYS)


def _log_profile(profile: Sequence[float], num_plain_ids: int) -> Tensor:
    """Its logarithms over all plain ids, float32 `[num_plain_ids]`."""
    rest = [0.0] * (num_plain_ids - len(profile))
    return torch.tensor([*profile, *rest], dtype=torch.float64).clamp_(min=_RARE).log().float()


def looks_back(state: int, position: int) -> int:
    """Which earlier position the token at `position` > 0 looks at, after a history of `state`."""
    return state % position


def _coin(state: int, salt: int) -> float:
    """Uniform in [0, 1), a hash of a state."""
    return (mix(state ^ salt) >> 11) * 2.0**-53


def mix(value: int) -> int:
    """A 64-bit hash (splitmix64's finaliser, Steele, Lea, Flood 2014), one to one."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return value ^ (value >> 31)
