"""Opening a session on the verifier: whether the target can serve it, and what guides it."""

from __future__ import annotations

from paceline.config import VerifierConfig
from paceline.errors import InvalidArgumentError
from paceline.runtime.feature_source import FeatureSource
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.runner import Runner
from paceline.types import OpenSession
from verifier_service.guidance import Guidance
from verifier_service.session import VerifierSession


def open_session(
    opening: OpenSession, runner: Runner, config: VerifierConfig, grammar: GrammarEngine | None
) -> VerifierSession:
    """A session that has no pages yet. Raises `InvalidArgumentError` if it cannot be served."""
    check_opening(opening, runner)
    guidance = guidance_of(opening, grammar)
    patience_ms = (
        config.seeded_draft_patience_ms if opening.reproducible else config.draft_patience_ms
    )
    return VerifierSession(
        opening,
        patience_s=patience_ms / 1e3,
        max_drafts=config.max_drafts_per_pass,
        guidance=guidance,
    )


def check_opening(opening: OpenSession, runner: Runner) -> None:
    """Raise `InvalidArgumentError` unless this model can serve the session."""
    if not opening.token_ids or not 1 <= opening.prompt_length <= len(opening.token_ids):
        raise InvalidArgumentError("token_ids", "the prompt is empty")
    if opening.vocab_size != runner.vocab_size:
        raise InvalidArgumentError(
            "vocab_size", f"{opening.vocab_size} is not the target's {runner.vocab_size}"
        )
    wrong = next((i for i in opening.token_ids if not 0 <= i < opening.vocab_size), None)
    if wrong is not None:
        raise InvalidArgumentError(
            "token_ids", f"{wrong} is outside the vocabulary of {opening.vocab_size}"
        )
    if opening.max_length > runner.context_length:
        raise InvalidArgumentError(
            "max_tokens",
            f"prompt of {opening.prompt_length} and {opening.sampling.max_tokens} new tokens exceed"
            f" the context of {runner.context_length}",
        )
    if len(opening.token_ids) >= opening.max_length:
        raise InvalidArgumentError("max_tokens", "is used up already")
    opening.sampling.check_vocabulary(opening.vocab_size)
    if opening.features and not (isinstance(runner, FeatureSource) and runner.feature_size):
        raise InvalidArgumentError("features", "the target does not show its hidden states")


def guidance_of(opening: OpenSession, grammar: GrammarEngine | None) -> Guidance | None:
    """What guides the session, from where its committed tokens end; None if nothing does."""
    if not opening.grammar:
        return None
    if grammar is None:
        raise InvalidArgumentError("grammar", "this verifier guides no output")
    matcher = grammar.matcher(
        opening.grammar,
        prompt_length=opening.prompt_length,
        end_ids=opening.eos_token_ids,
    )
    matcher.extend(opening.token_ids[opening.prompt_length :])
    if matcher.length < len(opening.token_ids):
        raise InvalidArgumentError("token_ids", "what was committed does not fit the grammar")
    return Guidance(matcher)
