"""What a pass tells a drafter that drafts from features: those of committed positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import PacelineError
from paceline.runtime.engine_thread import LinkId
from paceline.sampling.acceptance import Judgement
from paceline.types import PromptFeatures, Verdict, VerifierReply
from verifier_service.ragged_pass import Entry, PassResult


def prompt_features(
    entries: Sequence[Entry], result: PassResult
) -> list[tuple[LinkId, VerifierReply]]:
    """Of the sessions that this pass has brought no verdict: all that they fed is committed."""
    return [
        (entry.key[0], PromptFeatures(entry.key[1], result.features[entry.key]))
        for entry in entries
        if not entry.is_complete and entry.key in result.features
    ]


def with_features(
    reply: VerifierReply, entry: Entry, judgement: Judgement | PacelineError, result: PassResult
) -> VerifierReply:
    """A verdict, with the features of what its pass fed and it committed.

    The last committed token has not been fed. A session that has ended has no use for them. Of a
    tree the accepted path is kept, as its KV is.
    """
    features = result.features.get(entry.key)
    if features is None or not isinstance(reply, Verdict) or reply.finish_reason is not None:
        return reply
    assert isinstance(judgement, Judgement)
    num_uncached = entry.plan.num_uncached
    path = judgement.path or range(reply.accepted_length)
    rows = [*range(num_uncached), *(num_uncached + node for node in path)]
    return replace(reply, features=features.kept(rows[: reply.kv_length - features.base]))
