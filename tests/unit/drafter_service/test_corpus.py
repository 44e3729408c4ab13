"""Texts beside the session's own: sharing between sessions, its bound, and a corpus from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drafter_harness import DrafterBench, drafted, opening
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.corpus import Corpus, load_corpus
from drafter_service.ngram import NgramDrafter
from drafter_service.ngram_table import contexts
from paceline.config import DrafterConfig, NgramConfig, parse_config
from paceline.errors import ConfigError
from paceline.runtime.tokenizer import Tokenizer
from paceline.types import CloseSession

STORY = (1, 2, 3, 4, 5, 6, 7)


def bench_of(corpus: Corpus | None = None, **fields: Any) -> DrafterBench:
    return DrafterBench(NgramDrafter(NgramConfig(**fields), corpus))


def tell(bench: DrafterBench, session_id: int = 1) -> None:
    """A session of which STORY is committed, then three drafts that nobody judges."""
    bench.post(opening(session_id, token_ids=STORY))
    bench.run()
    bench.advance(8, session_id=session_id)
    bench.run()
    bench.post(CloseSession(session_id))


def test_sessions_do_not_copy_from_each_other_unless_told_to() -> None:
    bench = bench_of()
    tell(bench)
    bench.post(opening(2, token_ids=(3, 4)))
    assert drafted(bench.run(), 2) == []


def test_shared_texts_are_what_ended_sessions_committed() -> None:
    bench = bench_of(shared=True)
    tell(bench)
    bench.post(opening(2, token_ids=(3, 4)))
    assert drafted(bench.run(), 2) == [5, 6, 7, 8], "and no draft behind it"


def test_drafts_that_nobody_accepted_are_not_shared() -> None:
    bench = bench_of(shared=True)
    bench.post(opening(1, token_ids=(1, 2, 3, 4, 1, 2)))
    assert len(drafted(bench.run())) == 8
    bench.post(CloseSession(1))
    bench.post(opening(2, token_ids=(9, 9, 9)))
    bench.run()
    shared = bench.drafter._reader._shared
    assert shared.num_tokens == 6
    assert [candidate.times for candidate in shared.candidates((1, 2))] == [1]


def test_a_live_sessions_text_is_not_shared() -> None:
    bench = bench_of(shared=True)
    bench.post(opening(1, token_ids=STORY))
    bench.run()
    bench.post(opening(2, token_ids=(3, 4)))
    assert drafted(bench.run(), 2) == []


def test_a_reproducible_session_does_not_depend_on_what_others_said() -> None:
    bench = bench_of(shared=True)
    tell(bench)
    bench.post(opening(2, token_ids=(3, 4), reproducible=True, prompt_length=1))
    assert drafted(bench.run(), 2) == []


def test_the_first_text_to_come_is_the_first_forgotten() -> None:
    corpus = Corpus(range(1, 3), max_tokens=6)
    corpus.add([1, 2, 3])
    corpus.add([1, 5, 3])
    assert [candidate.token_id for candidate in corpus.candidates((1,))] == [5, 2]
    corpus.add([7])
    assert corpus.num_tokens == 4
    assert [candidate.token_id for candidate in corpus.candidates((1,))] == [5]
    corpus.add([*range(100)])
    assert corpus.num_tokens == 6
    assert corpus.candidates((1,)) == ()
    (candidate,) = corpus.candidates((96, 97))
    assert [corpus.token_at(candidate.place + i) for i in range(3)] == [98, 99, None]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(texts=st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=12))
def test_a_corpus_that_has_forgotten_is_as_one_that_never_knew(texts: list[list[int]]) -> None:
    """Candidates, their order and what follows them; nothing is left of what is forgotten."""
    sizes = range(1, 4)
    corpus, last = Corpus(sizes, 20), Corpus(sizes, 10_000)
    for text in texts:
        corpus.add(text)
    kept: list[list[int]] = []
    for text in reversed(texts):
        if sum(map(len, kept)) + len(text) > 20:
            break
        kept.insert(0, text)
    for text in kept:
        last.add(text)
    assert corpus.num_tokens == last.num_tokens == sum(map(len, kept))
    assert len(corpus._table) == len(last._table)
    for text in kept:
        for end in range(1, len(text) + 1):
            for context in contexts(text, end, sizes):
                ours, theirs = corpus.candidates(context), last.candidates(context)
                assert [c[:2] for c in ours] == [c[:2] for c in theirs]
                for our, their in zip(ours, theirs, strict=True):
                    follows = [corpus.token_at(our.place + i) for i in range(3)]
                    assert follows == [last.token_at(their.place + i) for i in range(3)]


def test_the_own_text_goes_before_the_corpus_at_the_same_length() -> None:
    corpus = Corpus(range(1, 3), 100)
    corpus.add([1, 2, 9, 9])
    bench = bench_of(corpus, min_match=1, max_match=2)
    bench.post(opening(token_ids=(1, 2, 5, 1, 2), num_speculative_tokens=1, window=1))
    assert drafted(bench.run()) == [5]
    bench.post(opening(2, token_ids=(2, 5, 1, 2), num_speculative_tokens=1, window=1))
    assert drafted(bench.run(), 2) == [9], "a longer match"


def load(path: Path, content: str, tokenizer: Tokenizer | None = None, **fields: Any) -> Corpus:
    path.write_text(content, encoding="utf-8")
    corpus = load_corpus(NgramConfig(corpus=str(path), **fields), tokenizer)
    assert corpus is not None
    return corpus


def test_a_corpus_of_ids_is_read_line_by_line(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, [list(STORY), [], [3, 4, 9]]))
    corpus = load(tmp_path / "texts.jsonl", lines + "\n\n")
    assert [candidate.token_id for candidate in corpus.candidates((3, 4))] == [9, 5]
    assert corpus.candidates((7, 3)) == (), "no n-gram spans two texts"


def test_a_corpus_of_text_is_read_by_the_tokenizer(
    tmp_path: Path, byte_tokenizer_dir: Path
) -> None:
    tokenizer = Tokenizer.load(str(byte_tokenizer_dir))
    corpus = load(tmp_path / "story.txt", "once upon", tokenizer)
    assert [c.token_id for c in corpus.candidates(tuple(b"once"))] == [ord(" ")]


@pytest.mark.parametrize("line", ["[1, 2", '["a"]', "[-1]", "[true]", "[1.5]", '{"ids": [1]}'])
def test_a_line_that_is_no_list_of_ids_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.ngram\.corpus: .*: line 2 is no list of"):
        load(tmp_path / "texts.jsonl", f"[1, 2]\n{line}\n")


def test_a_corpus_beyond_the_limit_names_both_settings(tmp_path: Path) -> None:
    message = r"ngram\.corpus: .* has 3 tokens, drafter\.ngram\.max_corpus_tokens allows 2"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "texts.jsonl", "[1, 2, 3]", max_corpus_tokens=2)


def test_a_corpus_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.ngram\.corpus: .*none\.jsonl: "):
        load_corpus(NgramConfig(corpus=str(tmp_path / "none.jsonl")), None)


def test_text_needs_a_tokenizer_where_there_is_no_model() -> None:
    ngram = {"corpus": "story.txt"}
    with pytest.raises(ConfigError, match=r"drafter: ngram\.tokenizer is required .* story\.txt"):
        parse_config({"drafter": {"ngram": ngram}}, "f")
    cascade = {"kind": "cascade", "model": {"path": "m"}, "ngram": ngram}
    assert parse_config({"drafter": cascade}, "f").drafter.ngram.corpus == "story.txt"
    assert DrafterConfig(ngram=NgramConfig(corpus="ids.jsonl")).ngram.tokenizer is None
