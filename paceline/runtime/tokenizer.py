"""The tokenizer of a model: text to ids and back, and what two tokenizers must agree on.

It reads the fast (Rust) tokenizer directly, so that encoding from several threads is safe.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from paceline.errors import InvalidArgumentError, ModelLoadError
from paceline.runtime.model_source import resolve_source
from paceline.runtime.synthetic_tokenizer import build_synthetic_tokenizer, vocab_size_of

SPECIAL_NAMES = ("bos", "eos", "pad", "unk")

_PADDING = re.compile(rb"\[PAD\d+\]")
"""What converters write for embedding rows without a token."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The id -> string table, UTF-8 by id (empty where an id has no token), and special ids."""

    tokens: list[bytes]
    special_token_ids: dict[str, int] = field(default_factory=dict)


class Tokenizer:
    """A fast tokenizer of transformers, with exactly one BOS where the model wants one.

    `vocab_size` is the highest id + 1, added tokens included. `special_token_ids` holds those of
    "bos", "eos", "pad" and "unk" that exist. `decoder_steps` are the steps, as tokenizers
    serialises them, that turn a sequence of pieces into text; empty joins with spaces.
    """

    def __init__(self, pretrained: Any) -> None:
        self._pretrained = pretrained
        self._backend = pretrained.backend_tokenizer
        # A stored truncation or padding is for training; a prompt is never cut silently.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.vocab_size: int = 1 + max(self._backend.get_vocab().values(), default=-1)
        self._strings: list[str | None] = [
            self._backend.id_to_token(token_id) for token_id in range(self.vocab_size)
        ]
        self._skipped = frozenset(
            token_id
            for token_id, token in self._backend.get_added_tokens_decoder().items()
            if token.special
        )
        self.special_token_ids = {
            name: token_id
            for name in SPECIAL_NAMES
            if (token_id := getattr(pretrained, f"{name}_token_id", None)) is not None
        }
        self.decoder_steps = _decoder_steps(self._backend)
        self.fingerprint = _fingerprint(self.vocabulary())
        bos = self.bos_token_id
        self._adds_bos = bos is not None and self._backend.encode("a").ids[:1] == [bos]
        self._anchor = self._backend.encode("a", add_special_tokens=False).ids[:1]
        self._anchor_text = self.decode(self._anchor)
        self._texts: dict[int, str] = {}
        """Of single ids; a decoding costs microseconds, and each answer asks for the same ones."""

    @classmethod
    def load(cls, path: str, revision: str | None = None) -> Tokenizer:
        """Load from a directory, a GGUF file, `package:NAME` or a hub id; seconds for GGUF.

        A synthetic model's name makes its tokenizer, without any file.

        Raises `ModelLoadError` when there is none, or none in the fast form.
        """
        from transformers import AutoTokenizer  # noqa: PLC0415  (slow import)

        synthetic_size = vocab_size_of(path)
        if synthetic_size is not None:
            return cls(build_synthetic_tokenizer(synthetic_size))
        source = resolve_source(path, revision)
        try:
            pretrained = AutoTokenizer.from_pretrained(source.name, **source.pretrained_arguments())
        except Exception as error:  # transformers raises many kinds, some bare
            raise ModelLoadError(f"tokenizer of {path}: {_first_line(error)}") from error
        if not getattr(pretrained, "is_fast", False):
            raise ModelLoadError(f"tokenizer of {path}: it has no fast (tokenizer.json) form")
        return cls(pretrained)

    @property
    def bos_token_id(self) -> int | None:
        return self.special_token_ids.get("bos")

    @property
    def eos_token_id(self) -> int | None:
        return self.special_token_ids.get("eos")

    @property
    def has_chat_template(self) -> bool:
        return bool(self._pretrained.chat_template)

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt: one BOS if the tokenizer adds it, also where `text` begins with it."""
        return self._with_one_bos(list(self._backend.encode(text).ids))

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` alone, no special token added."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation (`role`, `content`) up to where the assistant's answer begins.

        The template may write BOS itself; the ids start with one either way, if the tokenizer
        adds one. Raises `InvalidArgumentError` when there is no template or it refuses.
        """
        if not self._pretrained.chat_template:
            raise InvalidArgumentError("messages", "the model has no chat template; send a prompt")
        try:
            text = self._pretrained.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # templates raise jinja's errors and any of Python's
            problem = f"the chat template refuses them: {_first_line(error)}"
            raise InvalidArgumentError("messages", problem) from error
        return self._with_one_bos(self.encode_plain(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens and unknown ids skipped, spaces left as they are."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    def piece(self, token_id: int) -> str | None:
        """The string of an id as the decoder steps read it; None where decoding skips the id."""
        if token_id in self._skipped or not 0 <= token_id < self.vocab_size:
            return None
        return self._strings[token_id]

    def token_text(self, token_id: int) -> str:
        """What one id looks like by itself inside a text; a special token shows its own name.

        Bytes that make no whole character show as U+FFFD.
        """
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._token_text(token_id)
        return text

    def _token_text(self, token_id: int) -> str:
        if token_id in self._skipped:
            return self._strings[token_id] or ""
        return self.decode([*self._anchor, token_id]).removeprefix(self._anchor_text)

    def serialized(self) -> str:
        """The fast tokenizer as its own JSON."""
        return str(self._backend.to_str())

    def vocabulary(self) -> Vocabulary:
        """The id -> string table."""
        tokens = [(string or "").encode() for string in self._strings]
        return Vocabulary(tokens, dict(self.special_token_ids))

    def _with_one_bos(self, token_ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        if bos is None or not self._adds_bos:
            return token_ids
        start = 0
        while start < len(token_ids) and token_ids[start] == bos:
            start += 1
        return [bos, *token_ids[start:]]


def first_difference(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Why two vocabularies do not fit together, or None when they do.

    Ids must mean the same strings; the first that does not is named with both strings. Padding
    (empty or `[PADn]`) may differ. Among special ids only BOS must agree, where both have one:
    the draft's own end, padding and unknown ids never decide anything.
    """
    pairs = zip_longest(_unpadded(target), _unpadded(draft), fillvalue=b"")
    for token_id, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            names = f"{_shown(ours)} for the target, {_shown(theirs)} for the draft"
            return f"token id {token_id} is {names}"
    ours_bos = target.special_token_ids.get("bos")
    theirs_bos = draft.special_token_ids.get("bos")
    if ours_bos is not None and theirs_bos is not None and ours_bos != theirs_bos:
        return f"the BOS token id is {ours_bos} for the target, {theirs_bos} for the draft"
    return None


def _unpadded(vocabulary: Vocabulary) -> Iterator[bytes]:
    return (b"" if _PADDING.fullmatch(token) else token for token in vocabulary.tokens)


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="replace")) if token else "no token"


def _fingerprint(vocabulary: Vocabulary) -> str:
    """SHA-256 over the strings in id order, each with its length, and the special ids."""
    digest = hashlib.sha256()
    for token in vocabulary.tokens:
        digest.update(len(token).to_bytes(4, "little"))
        digest.update(token)
    digest.update(json.dumps(vocabulary.special_token_ids, sort_keys=True).encode())
    return digest.hexdigest()


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    decoder = backend.decoder
    if decoder is None:
        return []
    # The state is the JSON of the decoder alone; the whole tokenizer's holds the vocabulary too.
    return list(_flattened(json.loads(decoder.__getstate__())))


def _flattened(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for inner in step["decoders"]:
        yield from _flattened(inner)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
