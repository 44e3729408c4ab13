"""The tokenizer of synthetic models: one id a character, made from its size alone."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

PREFIX = "synthetic:"
SPECIAL_TOKENS = ("<unk>", "<bos>", "<eos>")
"""The last ids of every vocabulary, in this order."""

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_PRINTABLE = range(0x20, 0x7F)
_FIRST_IDEOGRAPH = 0x20000


def vocab_size_of(name: str) -> int | None:
    """The vocabulary size in the name of a synthetic model; None for any other name."""
    size, _, seed = name.removeprefix(PREFIX).partition(":")
    known = name.startswith(PREFIX) and size.isdecimal() and (seed or "0").isdecimal()
    return int(size) if known else None


def build_synthetic_tokenizer(vocab_size: int) -> Any:
    """A fast tokenizer of transformers with `vocab_size` ids.

    The first 95 are the printable ASCII characters, the next ideographs (CJK extension B onwards),
    the last `SPECIAL_TOKENS`. A character without an id is `<unk>`. No BOS is added.
    """
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  (slow import)

    num_plain_ids = vocab_size - len(SPECIAL_TOKENS)
    characters = [_character(token_id) for token_id in range(num_plain_ids)]
    vocabulary = {text: index for index, text in enumerate([*characters, *SPECIAL_TOKENS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def _character(token_id: int) -> str:
    if token_id < len(_PRINTABLE):
        return chr(_PRINTABLE[token_id])
    return chr(_FIRST_IDEOGRAPH + token_id - len(_PRINTABLE))
