"""Grammars as masks over token ids: which ids may come next, so that the output matches.

llguidance reads grammar and tokenizer. Both sides give probability 0 to what it forbids, so that
drafts obey the grammar too and the output keeps the law of the masked target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from paceline.errors import InvalidArgumentError
from paceline.runtime.grammar_text import one_line
from paceline.runtime.tokenizer import Tokenizer

_LIMITS = LLParserLimits(verbose_errors=False, initial_lexer_fuel=100_000)
"""The library's own bounds on work and memory; errors without the parser's state.

The first mask is computed on a worker's engine thread, where all sessions wait for it: a tenth of
the library's fuel bounds that at some 40 ms (`(a{1000}){1000}` took a second), and what is not
prepared is looked up when it comes up.
"""


_NO_CHARACTER = "\ufdd0"
"""Of Unicode's code points that are for no text, never."""


class GrammarEngine:
    """Reads grammars for one tokenizer. `matcher` and `problem` may be called by any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: LLTokenizer | None = None
        self._unusable = ""

    def prepare(self) -> None:
        """Index the vocabulary, once; about half a second for 50,000 ids, so do it beforehand.

        Raises nothing: a tokenizer that cannot be guided makes every grammar a `problem`.
        """
        if self._tokens is not None or self._unusable:
            return
        try:
            self._tokens = LLTokenizer(
                _nameless(self._tokenizer.serialized()),
                n_vocab=self._tokenizer.vocab_size,
                eos_token=self._end_marker(),
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a Rust panic is no Exception
            self._unusable = f"the model's tokenizer cannot be guided: {one_line(str(error))}"

    def _end_marker(self) -> int:
        """The id by which llguidance means the end: any that is no text; no end id of a model."""
        special = self._tokenizer.special_token_ids
        for name in ("eos", "pad", "bos", "unk"):
            if name in special:
                return int(special[name])
        raise ValueError("it has no special token")

    def problem(self, grammar: str) -> str:
        """Why no output of this vocabulary can match the grammar; empty if one may."""
        self.prepare()
        if self._tokens is None:
            return self._unusable
        matcher = _compile(self._tokens, grammar)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return _reason(matcher) if matcher.is_error() else ""

    def matcher(
        self, grammar: str, *, prompt_length: int, end_ids: Sequence[int]
    ) -> GrammarMatcher:
        """Where an output stands that begins after `prompt_length` tokens.

        `end_ids` are allowed where the grammar is complete, and there alone. Raises
        `InvalidArgumentError` naming `grammar`.
        """
        self.prepare()
        if self._tokens is None:
            raise InvalidArgumentError("grammar", self._unusable)
        compiled = partial(_compile, self._tokens, grammar)
        matcher = compiled()
        if matcher.is_error():
            raise InvalidArgumentError("grammar", _reason(matcher))
        return GrammarMatcher(
            matcher,
            compiled,
            prompt_length=prompt_length,
            end_ids=end_ids,
            vocab_size=self._tokenizer.vocab_size,
            marker=self._end_marker(),
        )


def _nameless(serialized: str) -> str:
    """A tokenizer whose special tokens are called what no text spells.

    llguidance has its text that must come spelt by the tokenizer, which takes the name of a special
    token for that token; a grammar means the characters.
    """
    tokenizer: dict[str, Any] = json.loads(serialized)
    names: dict[str, str] = {}
    for token in tokenizer.get("added_tokens") or ():
        if token.get("special"):
            name = f"{_NO_CHARACTER}{token['id']}"
            names[token["content"]], token["content"] = name, name
    model = tokenizer["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(name, name): number for name, number in vocabulary.items()}
    elif vocabulary is not None:  # of pieces and their scores
        model["vocab"] = [[names.get(name, name), score] for name, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    tokenizer["post_processor"] = None  # it names them, and there is nothing to add
    return json.dumps(tokenizer)


def _compile(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """At the start of the grammar, or in its error state if that cannot be read."""
    return LLMatcher(tokens, grammar, log_level=0, limits=_LIMITS)


def _reason(matcher: LLMatcher) -> str:
    """Why a matcher is in its error state."""
    reason = one_line(matcher.get_error())
    return "no token of the vocabulary goes on here" if reason == "NoExtensionBias" else reason


class GrammarMatcher:
    """Where one output stands in its grammar. Used by one thread.

    `length` counts as a page table's does: the prompt and the output tokens taken. What follows an
    end id, or a token that the grammar forbids, is never taken.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        compiled: Callable[[], LLMatcher],
        *,
        prompt_length: int,
        end_ids: Sequence[int],
        vocab_size: int,
        marker: int,
    ) -> None:
        self.problem = ""
        """Why nothing may follow where the output stands; known once it was tried."""
        self._matcher = matcher
        self._compiled = compiled
        self._prompt_length = prompt_length
        self._taken: list[int] = []
        self._vocab_size = vocab_size
        self._end_ids = frozenset(i for i in end_ids if 0 <= i < vocab_size)
        self._ends = np.array(sorted(self._end_ids), dtype=np.intp)
        self._marker = marker

    @property
    def length(self) -> int:
        """Tokens of the sequence up to where the output stands."""
        return self._prompt_length + len(self._taken)

    def extend(self, token_ids: Sequence[int]) -> int:
        """Take output tokens; returns how many the grammar allows, an end id among them."""
        for count, token_id in enumerate(token_ids):
            if token_id in self._end_ids:
                return count + self._matcher.is_accepting()
            if not self._take(token_id):
                return count
        return len(token_ids)

    def _take(self, token_id: int) -> bool:
        is_text = 0 <= token_id < self._vocab_size and token_id != self._marker
        if is_text and self._matcher.try_consume_tokens([token_id]):
            self._taken.append(token_id)
            return True
        if self._matcher.is_error():
            self._fail()
        return False

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on, if there are any."""
        self.problem = ""
        num_dropped = self.length - length
        if num_dropped <= 0:
            return
        del self._taken[len(self._taken) - num_dropped :]
        if not self._matcher.rollback(num_dropped):
            self._restore()

    def _fail(self) -> None:
        self.problem = _reason(self._matcher)
        self._restore()

    def _restore(self) -> None:
        """Leave llguidance's error state, which knows no way back, by taking all tokens again.

        Compiled anew: a copy shares what was built up on the way to the error.
        """
        self._matcher = self._compiled()
        self._matcher.consume_tokens(self._taken)

    def mask(self) -> Tensor:
        """The ids that may come next, bool `[vocab_size]`; none if the output cannot go on.

        That is so where no token of the vocabulary fits, or the grammar became too complex.
        """
        packed = self._matcher.compute_bitmask()
        if self._matcher.is_error():  # the library would allow the end here
            self._fail()
        if self.problem:
            return torch.zeros(self._vocab_size, dtype=torch.bool)
        bits = np.unpackbits(
            np.frombuffer(packed, dtype=np.uint8), count=self._vocab_size, bitorder="little"
        )
        bits[self._marker] = 0
        bits[self._ends] = self._matcher.is_accepting()
        if not bits.any():
            self.problem = "the output is complete, and there is no end id to end it with"
        return torch.from_numpy(bits).view(torch.bool)

    def masks(self, draft_tokens: Sequence[int], num_rows: int) -> tuple[Tensor | None, ...]:
        """Row i's mask, after the first i drafts; the matcher stays where it is.

        None from where no output can stand: after a draft that the grammar forbids, that ends the
        output or leads nowhere. What is decided from there on must not be committed.
        """
        rows: list[Tensor | None] = [self.mask()]
        if not self.problem:
            length = self.length
            rows += self._masks_after(draft_tokens[: num_rows - 1])
            self.truncate(length)
        return (*rows, *(None for _ in range(num_rows - len(rows))))

    def mask_after(self, draft_tokens: Sequence[int]) -> Tensor | None:
        """The mask after these drafts; the matcher stays where it is.

        None where nothing can follow: after a draft that the grammar forbids or that ends the
        output, or where it cannot go on. Without drafts it tells why, as `mask` does.
        """
        length = self.length
        if not all(i not in self._end_ids and self.extend([i]) for i in draft_tokens):
            self.truncate(length)
            return None
        mask = self.mask()
        can_go_on = not self.problem
        if draft_tokens:
            self.truncate(length)
        return mask if can_go_on else None

    def _masks_after(self, draft_tokens: Sequence[int]) -> Iterator[Tensor]:
        """The masks after each draft, as far as an output can stand."""
        for draft in draft_tokens:
            if draft in self._end_ids or not self.extend([draft]):
                return
            mask = self.mask()
            if self.problem:
                return
            yield mask
