"""A tokenizer of a few letters and syllables: grammars over it are small enough to enumerate."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from paceline.runtime.tokenizer import Tokenizer

SYLLABLES = ("a", "b", "c", "d", "ab", "bc", "cd", "abc", "ba", "dd")
END = len(SYLLABLES)


def small_tokenizer(syllables: Sequence[str] = SYLLABLES) -> Tokenizer:
    """Id i is syllable i; then come `<eos>` and `<pad>`."""
    backend = Backend(models.BPE({text: index for index, text in enumerate(syllables)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<eos>", "<pad>")])
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<eos>",
            pad_token="<pad>",
            clean_up_tokenization_spaces=False,
        )
    )
