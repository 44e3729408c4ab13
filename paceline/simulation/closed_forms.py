"""Speed-ups of speculative decoding in closed form, over decoding one token a pass.

Symbols, everywhere: α `acceptance`, the probability that a draft token is accepted, alike and
independent at every position; γ `num_drafts`, the drafts of one block; t `verify_s`, the time of a
target pass, the same for one token and for a block; t_d `draft_s`, the time of one draft token;
RTT `round_trip_s`, from the end of drafting a block to hearing of its verdict, less t.
"""

from __future__ import annotations


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """E = 1 + α + … + α^γ = (1 − α^(γ+1)) / (1 − α): the tokens that judging one block commits.

    The next token counts (recovered or bonus). Leviathan, Kalman, Matias 2023 (arXiv 2211.17192),
    equation 1.
    """
    if acceptance == 1.0:
        return num_drafts + 1.0
    return (1.0 - acceptance ** (num_drafts + 1)) / (1.0 - acceptance)


def sequential_speedup(
    acceptance: float,
    num_drafts: int,
    *,
    verify_s: float,
    draft_s: float,
    round_trip_s: float = 0.0,
) -> float:
    """E t / (t + γ t_d + RTT): draft a block, wait for its verdict, draft the next.

    Without a round trip that is E / (1 + γ c) with c = t_d / t: Leviathan et al. 2023, theorem 3.8.
    """
    expected = expected_tokens(acceptance, num_drafts)
    return expected * verify_s / (verify_s + num_drafts * draft_s + round_trip_s)


def overlapped_speedup(
    acceptance: float,
    num_drafts: int,
    *,
    verify_s: float,
    draft_s: float,
    round_trip_s: float = 0.0,
    takes_bonus: bool = True,
) -> float:
    """E t / [h max(V, D) + (1 − h)(V + D)]: the next block is drafted while one is verified.

    V = t + RTT, D = γ t_d, and h is the probability that the draft made ahead stays valid: then
    the next verdict needs the longer of the two only, otherwise drafting begins anew (a renewal
    argument: expected tokens over expected time of a round).

    With a bonus token E counts it, and the draft made ahead must also agree with it: h = α^(γ+1).
    Without, E = 1 + α + … + α^(γ−1) and h = α^γ. Only a bonus that the draft can agree with (a
    deterministic target) may be taken; one that is sampled voids the draft made ahead.
    """
    num_agreed = num_drafts + takes_bonus
    stays_valid = acceptance**num_agreed
    expected = expected_tokens(acceptance, num_agreed - 1)
    verifying, drafting = verify_s + round_trip_s, num_drafts * draft_s
    seconds = stays_valid * max(verifying, drafting) + (1.0 - stays_valid) * (verifying + drafting)
    return expected * verify_s / seconds
