"""A client's request, checked and complete: ids, sampling parameters, stops, how to speculate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.affinity import prefix_keys
from orchestrator.guide import guiding_grammar
from orchestrator.prompt import encode_bad_words, encode_request
from orchestrator.relay_settings import RelaySettings
from orchestrator.stop_strings import StopAutomaton
from orchestrator.window_plan import MAX_BLOCK
from paceline.config import OrchestratorConfig
from paceline.errors import InvalidArgumentError
from paceline.generation import GenerateCall
from paceline.rpc.limits import largest_block_bytes
from paceline.runtime.grammar import GrammarEngine
from paceline.runtime.tokenizer import Tokenizer
from paceline.sampling.params import MAX_SEED, DraftProbsFormat, SamplingParams
from paceline.types import WorkerInfo

MAX_WINDOW = 256
MAX_SPECULATIVE_TOKENS = 32
MAX_CACHE_SALT_LENGTH = 256
"""Characters."""
MAX_CACHE_KEY = 256


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Everything that one generation needs."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    stops: StopAutomaton | None
    includes_stop: bool
    settings: RelaySettings
    num_answers: int

    def answer_sampling(self, index: int) -> SamplingParams:
        """Answer `index` has the seed after those of the answers before it."""
        seed = (self.sampling.seed + index) % (MAX_SEED + 1)
        if index:  # the prompt is the same for all
            return replace(self.sampling, seed=seed, prompt_logprobs=None)
        return replace(self.sampling, seed=seed)


def complete_request(
    call: GenerateCall,
    *,
    tokenizer: Tokenizer,
    grammar: GrammarEngine,
    target: WorkerInfo,
    config: OrchestratorConfig,
    max_message_bytes: int,
) -> GenerationRequest:
    """Check and complete a call; tokenises, so run it off the event loop.

    Raises `InvalidArgumentError` naming the field and its limit.
    """
    stops = StopAutomaton(call.stop) if call.stop else None
    if len(call.prompt_cache_key) > MAX_CACHE_KEY:
        raise InvalidArgumentError(
            "prompt_cache_key",
            f"{len(call.prompt_cache_key)} characters, the limit is {MAX_CACHE_KEY}",
        )
    prompt = encode_request(
        tokenizer,
        prompt=call.prompt,
        messages=call.messages,
        token_ids=call.token_ids,
        vocab_size=target.vocab_size,
        context_length=target.context_length,
    )
    sampling = call.sampling
    room = target.context_length - len(prompt)
    if sampling.max_tokens > room:
        if call.gives_max_tokens:
            raise InvalidArgumentError(
                "max_tokens",
                f"{sampling.max_tokens} is above the {room} tokens that the context of"
                f" {target.context_length} leaves after a prompt of {len(prompt)}",
            )
        sampling = replace(sampling, max_tokens=room)
    if call.bad_words:
        banned = sampling.bad_words_token_ids + encode_bad_words(tokenizer, call.bad_words)
        try:
            sampling = replace(sampling, bad_words_token_ids=banned)
        except InvalidArgumentError as error:
            if error.field != "bad_words_token_ids" or sampling.bad_words_token_ids:
                raise
            problem = str(error).removeprefix(f"{error.field}: ")
            raise InvalidArgumentError("bad_words", f"in tokens, {problem}") from error
    sampling.check_vocabulary(target.vocab_size)
    _check_salt(call.cache_salt)
    settings = replace(
        _settings(call, config),
        grammar=guiding_grammar(call, engine=grammar, target=target),
        cache_key=call.prompt_cache_key,
        prefix_keys=prefix_keys(prompt),
    )
    block_length = MAX_BLOCK if settings.adaptive else settings.num_speculative_tokens
    block_bytes = largest_block_bytes(
        num_speculative_tokens=block_length,
        draft_top_k=settings.draft_top_k,
        vocab_size=target.vocab_size,
    )
    if settings.speculation and block_bytes > max_message_bytes:
        raise InvalidArgumentError(
            "num_speculative_tokens",
            f"{block_length} draft distributions of this format take up to"
            f" {block_bytes} bytes, a message holds {max_message_bytes}",
        )
    num_answers = 1 if call.n is None else call.n
    # more than may be live could never be
    _check_range("n", num_answers, min(config.max_answers, config.max_sessions))
    return GenerationRequest(
        prompt,
        sampling,
        stops,
        call.include_stop_in_output,
        settings,
        num_answers,
    )


def _settings(call: GenerateCall, config: OrchestratorConfig) -> RelaySettings:
    defaults = config.speculation
    window = defaults.window if call.window is None else call.window
    block = call.num_speculative_tokens
    if block is None:
        block = defaults.num_speculative_tokens
    _check_range("window", window, MAX_WINDOW)
    _check_range("num_speculative_tokens", block, MAX_SPECULATIVE_TOKENS)
    block = min(block, window)
    reproducible = call.gives_seed and not call.sampling.is_deterministic
    if reproducible:  # a partly filled block at the window's end would depend on timing
        window -= window % block
    chosen = call.window is not None or call.num_speculative_tokens is not None
    adaptive = defaults.adaptive and not chosen and not reproducible
    num_outcome_tokens = call.num_outcome_tokens
    if num_outcome_tokens is None:
        num_outcome_tokens = defaults.num_outcome_tokens if adaptive else 0
    _check_range("num_outcome_tokens", num_outcome_tokens, MAX_SPECULATIVE_TOKENS, least=0)
    start_window = window
    if adaptive:
        window = defaults.max_window
        start_window, block = min(start_window, window), min(block, window)
    return RelaySettings(
        speculation=call.speculation is not False,
        window=window,
        num_speculative_tokens=block,
        draft_top_k=draft_top_k(call.draft_probs or defaults.draft_probs, config),
        # credit comes in quarters, and what is left of it must hold a whole block
        commit_credit=max(config.commit_credit, 2 * window),
        failover_timeout_s=config.failover_timeout_s,
        reproducible=reproducible,
        adaptive=adaptive,
        start_window=start_window,
        num_outcome_tokens=num_outcome_tokens,
        cache_salt=call.cache_salt,
    )


def draft_top_k(draft_probs: DraftProbsFormat, config: OrchestratorConfig) -> int:
    """Ids that a draft distribution keeps: 0 is the full vocabulary, 1 a point mass."""
    if draft_probs is DraftProbsFormat.DENSE:
        return 0
    return 1 if draft_probs is DraftProbsFormat.NONE else config.speculation.draft_top_k


def _check_salt(salt: str) -> None:
    if len(salt) > MAX_CACHE_SALT_LENGTH:
        problem = f"{len(salt)} characters; at most {MAX_CACHE_SALT_LENGTH}"
        raise InvalidArgumentError("cache_salt", problem)


def _check_range(field: str, value: int, limit: int, *, least: int = 1) -> None:
    if not least <= value <= limit:
        raise InvalidArgumentError(field, f"{value} is outside {least} to {limit}")
