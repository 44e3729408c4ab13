"""Counter-based randomness: every number is a pure function of seed, position and purpose.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC 2011): the key is the seed, the counter says what the number is for. Nothing depends
on history, so a replay, another batch or another replica draws the same numbers.

What is keyed by what, and why no number that has decided something is used again:

- `NEXT` (recovered, bonus and autoregressive tokens): seed, position. One token is committed at a
  position, so it decides once, whichever way the token comes about.
- `DRAFT` and `ACCEPT` under `rejection`: seed, position. A position is judged only once all
  before it are final. After a rejection at position P the drafts beyond P were drawn but never
  judged, and P + 1 is redrawn from the same number on the new prefix. Which tokens precede P + 1
  depends only on numbers of positions up to P, and so does whether P + 1 is judged at all (a
  bonus or autoregressive token may take its place, and a draft in flight there is then compared
  with it). Given the prefix, the three numbers of P + 1 are therefore still fresh.
- `DRAFT` and `ACCEPT` under `block`: seed, position, epoch. Block verification looks at every
  draft of a pass before it settles on a length, so numbers past that length have had a say. The
  epoch rises with each such verdict, which makes the next round's numbers new ones.
- A draft that branches, under `rejection`. `ACCEPT`: seed, position, rank among the siblings; the
  walk looks at one position's numbers at a time, and each that it looks at settles that position.
  A first sibling's is a chain's own. `DRAFT`: seed, position, epoch, and where in its tree it was
  drawn, counted from 1. What is drawn at one place decides where the tree grows next, so that the
  numbers of a tree have had a say in how far a verdict goes; the epoch rises with each tree that
  is judged or void.
- Noise (`coupled`): seed, position, token id. Both sides must see the same noise.
"""

from __future__ import annotations

import enum
import math

import torch
from torch import Tensor

from paceline.sampling.params import Acceptance

NOISE_GROUP = 64
"""Token ids whose largest noise is drawn at once: ids `64 g` to `64 g + 63` form group g."""

_MASK = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_GROUP_LEVEL, _MEMBER_LEVEL = 0, 1


class Purpose(enum.Enum):
    """What a number is for. The value is a word of Philox's counter."""

    DRAFT = 0
    ACCEPT = 1
    NEXT = 2
    NOISE = 3


def keyed_epoch(acceptance: Acceptance, epoch: int) -> int:
    """The epoch that keys draft and acceptance numbers: the session's under `block`, else 0."""
    return epoch if acceptance is Acceptance.BLOCK else 0


def uniform(
    seed: int, position: int, purpose: Purpose, epoch: int = 0, *, branch: int = 0
) -> float:
    """A uniform number strictly inside (0, 1), a multiple of 2^-53.

    `position` is the absolute index of the token in the sequence, below 2^32; `seed` and `epoch`
    are below 2^64. `branch`, below 2^24, tells apart what a draft that branches has at a position.
    """
    counter = (position, purpose.value | branch << 8, epoch & _MASK, epoch >> 32)
    high, low, _, _ = philox(counter, (seed & _MASK, seed >> 32))
    # 52 bits and a half: exact in float64, and neither 0 nor 1.
    return (((high << 20) | (low >> 12)) + 0.5) * 2.0**-52


def gumbel_noise(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Independent standard Gumbel noise of some token ids at a position.

    `token_ids` is int64 `[n]`, the result float64 `[n]`: a pure function of (seed, position,
    token id), whatever other ids are asked for. The law is drawn from the top down (Maddison,
    Tarlow, Minka: "A* sampling", NeurIPS 2014): the maximum of a group of 64 ids is
    Gumbel(log 64), a uniform member attains it, and the others are Gumbel truncated there. So an
    upper bound on 64 noises costs one draw; `coupled_tokens` lives on that.
    """
    seeds = torch.tensor([seed_words(seed)], device=token_ids.device)
    positions = torch.tensor([position], device=token_ids.device)
    group = torch.div(token_ids, NOISE_GROUP, rounding_mode="floor")
    peak, top_member = group_noise(seeds, positions, group)
    return member_noise(seeds, positions, token_ids, peak, top_member)


def seed_words(seed: int) -> tuple[int, int]:
    """The low and high 32 bits of a seed, which fit int64 tensors."""
    return seed & _MASK, seed >> 32


def group_noise(seeds: Tensor, positions: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The largest noise of each group, float64, and the member (0 to 63) that attains it, int64.

    `seeds` is int64 `[..., 2]` (`seed_words`); `positions`, `groups` and the results broadcast to
    one shape.
    """
    words = _noise_words(seeds, positions, groups, _GROUP_LEVEL)
    peak = math.log(NOISE_GROUP) - torch.log(-torch.log(_to_uniform(words[0], words[1])))
    return peak, words[2] & (NOISE_GROUP - 1)


def member_noise(
    seeds: Tensor, positions: Tensor, token_ids: Tensor, peak: Tensor, top_member: Tensor
) -> Tensor:
    """The noise of single ids, float64, given what `group_noise` says of each id's group."""
    words = _noise_words(seeds, positions, token_ids, _MEMBER_LEVEL)
    exponential = -torch.log(_to_uniform(words[0], words[1]))
    truncated = torch.minimum(-torch.log(torch.exp(-peak) + exponential), peak)
    return torch.where(token_ids % NOISE_GROUP == top_member, peak, truncated)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of one counter, all words 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0 = (product_1 >> 32) ^ c1 ^ k0
        c1 = product_1 & _MASK
        c2 = (product_0 >> 32) ^ c3 ^ k1
        c3 = product_0 & _MASK
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def philox_tensor(counter: Tensor, key: Tensor) -> Tensor:
    """The same function on int64 tensors of 32-bit words, bit for bit equal.

    `counter` is `[4, ...]`, `key` is `[2, ...]` and broadcasts to it; returns `[4, ...]`.
    """
    # Each round multiplies words 0 and 2 and crosses them over; stacked, it is done at once.
    shape = (2,) + (1,) * (counter.dim() - 1)
    # Both multipliers are above 2^31. With 2^32 less, the product stays within int64, so nothing
    # relies on how a device wraps; its high word then lacks exactly the word multiplied.
    multipliers = counter.new_tensor([_MULTIPLIER_1 - 2**32, _MULTIPLIER_0 - 2**32]).view(shape)
    weyl = counter.new_tensor([_WEYL_0, _WEYL_1]).view(shape)
    multiplied, carried = counter[0::2], counter[1::2]
    for _ in range(_ROUNDS):
        crossed = multiplied.flip(0)
        product = crossed * multipliers
        high = (product >> 32).add_(crossed).bitwise_and_(_MASK)
        multiplied = high.bitwise_xor_(carried).bitwise_xor_(key)
        carried = product.bitwise_and_(_MASK)
        key = (key + weyl) & _MASK
    return torch.stack([multiplied[0], carried[0], multiplied[1], carried[1]])


def _noise_words(seeds: Tensor, positions: Tensor, index: Tensor, level: int) -> Tensor:
    positions, index = torch.broadcast_tensors(positions, index)
    purpose = torch.full_like(index, Purpose.NOISE.value)
    counter = torch.stack([positions, purpose, index, torch.full_like(index, level)])
    return philox_tensor(counter, seeds.movedim(-1, 0))


def _to_uniform(high: Tensor, low: Tensor) -> Tensor:
    """As in `uniform`: float64 strictly inside (0, 1)."""
    return (((high << 20) | (low >> 12)).double() + 0.5) * 2.0**-52
