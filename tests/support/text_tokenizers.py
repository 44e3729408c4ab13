"""Small tokenizers of every decoding family, built on the spot."""

from __future__ import annotations

from collections.abc import Callable

from support.byte_tokenizer import build_byte_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = (
    "the quick brown fox jumps over the lazy dog. don't stop , it 's fine !",
    "naïve café 日本語 😀 👩‍👩‍👧 e\u0301 ẞ",
    "  leading   spaces\nand\tlines\n\nof text",
)
PIECES = ("▁", "▁the", "the", "he", "▁a", "a", "b", "▁▁", "日本", "é", "\u0301", ".", "▁.", "\n")


def _wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """GPT-2's kind, with merges, and an added token in plain text that is not special."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["plain 日 added"])
    return _wrap(backend)


def _byte_fallback_bpe() -> Tokenizer:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocabulary = {name: index for index, name in enumerate(names)}
    merges = [("▁", "the"), ("▁", "a"), ("▁", "▁"), ("▁", ".")]
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def llama_style() -> PreTrainedTokenizerFast:
    """SentencePiece converted as Llama 2's: byte fallback, and the leading space cut."""
    backend = _byte_fallback_bpe()
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrap(backend)


def gemma_style() -> PreTrainedTokenizerFast:
    """As Llama's, without the leading space."""
    backend = _byte_fallback_bpe()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _wrap(backend)


def metaspace(scheme: str = "always") -> PreTrainedTokenizerFast:
    """SentencePiece with the Metaspace decoder (XGLM, newer Mistral)."""
    backend = _byte_fallback_bpe()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _wrap(backend)


def unigram_stripped() -> PreTrainedTokenizerFast:
    """Strip on each token apart, and Replace on the fused text."""
    backend = _byte_fallback_bpe()
    backend.decoder = decoders.Sequence(
        [decoders.Strip("▁", 1, 0), decoders.Fuse(), decoders.Replace("▁", " ")]
    )
    return _wrap(backend)


def _word_level(names: list[str]) -> Tokenizer:
    backend = Tokenizer(
        models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def word_piece() -> PreTrainedTokenizerFast:
    """BERT's kind."""
    names = ["<unk>", "<s>", "</s>", "the", "##s", "##ing", ".", ",", "!", "do", "n't", "'s", "é"]
    backend = Tokenizer(
        models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.decoder = decoders.WordPiece()
    return _wrap(backend)


def word_suffix() -> PreTrainedTokenizerFast:
    """The first GPT's kind: `</w>` ends a word."""
    names = ["<unk>", "<s>", "</s>", "the</w>", "th", "e</w>", "a</w>b</w>", "a</w>b", "</w>"]
    backend = _word_level(names)
    backend.decoder = decoders.BPEDecoder()
    return _wrap(backend)


def without_decoder() -> PreTrainedTokenizerFast:
    """Words joined with spaces."""
    return _wrap(_word_level(["<unk>", "<s>", "</s>", "one", "two", "three", "é"]))


def with_unknown_decoder() -> PreTrainedTokenizerFast:
    """A decoder step without incremental form: a regular expression."""
    backend = _byte_fallback_bpe()
    backend.decoder = decoders.Sequence(
        [decoders.Fuse(), decoders.Replace(Regex("▁+"), " "), decoders.ByteFallback()]
    )
    return _wrap(backend)


FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte": lambda: build_byte_tokenizer(extra_special=["<pad>"]),
    "byte_level_bpe": byte_level_bpe,
    "llama_style": llama_style,
    "gemma_style": gemma_style,
    "metaspace": metaspace,
    "metaspace_never": lambda: metaspace("never"),
    "unigram_stripped": unigram_stripped,
    "word_piece": word_piece,
    "word_suffix": word_suffix,
    "without_decoder": without_decoder,
    "with_unknown_decoder": with_unknown_decoder,
}
