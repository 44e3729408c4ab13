"""A tokenizer whose id i < 256 is byte i: any byte sequence is a text of one token a byte."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from paceline.runtime.byte_alphabet import BYTE_TO_CHAR

BOS, EOS = "<bos>", "<eos>"
BOS_ID, EOS_ID = 256, 257

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Writes BOS itself, as the templates of Llama and Gemma do."""


def build_byte_tokenizer(
    *,
    extra_special: Sequence[str] = (),
    chat_template: str | None = None,
    swap: tuple[int, int] | None = None,
    add_bos: bool = False,
) -> PreTrainedTokenizerFast:
    """Bytes 0 to 255, `<bos>` = 256, `<eos>` = 257, then `extra_special`.

    `swap` exchanges the strings of two byte ids; `add_bos` makes plain encoding start with BOS.
    """
    strings = [BYTE_TO_CHAR[byte] for byte in range(256)]
    if swap is not None:
        first, second = swap
        strings[first], strings[second] = strings[second], strings[first]
    backend = Tokenizer(models.BPE({text: index for index, text in enumerate(strings)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    specials = [BOS, EOS, *extra_special]
    backend.add_special_tokens([AddedToken(text, special=True) for text in specials])
    template = f"{BOS} $A" if add_bos else "$A"
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(BOS, BOS_ID)] if add_bos else []
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer
