"""A drafter of a reduced vocabulary among the services: which targets and settings it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.reduced_models import save_reduced_model
from support.services import model_section, running, settings

from paceline.errors import ConfigError, ModelLoadError, VocabularyMismatchError

MakeDir = Callable[..., Path]

SOME_IDS = range(0, 258, 2)


@pytest.fixture
def reduced(tiny_dir: MakeDir, tmp_path: Path) -> Path:
    return save_reduced_model(tmp_path / "reduced", tiny_dir(), SOME_IDS)


async def refused(document: dict[str, Any]) -> None:
    async with running(document):
        pass


async def test_it_serves_the_target_it_was_made_for_and_no_other(
    reduced: Path, tiny_dir: MakeDir
) -> None:
    """C02: the fingerprint and the vocabulary's size are the target's, whose ids travel."""
    async with running(settings(tiny_dir(), reduced)) as stack:
        info = await stack.info("drafter")
        assert info.vocab_size == (await stack.info("verifier")).vocab_size == 258
        assert info.model == f"{reduced}, made for {tiny_dir()}"
        result = await stack.generate(
            messages=[{"role": "user", "content": "hi"}], max_tokens=12, temperature=0
        )
        assert result.stats.drafted > 0
        guided = await stack.generate(
            token_ids=[5, 6], max_tokens=8, guided_choice=["aha", "bcd"], temperature=0
        )
        assert guided.text in ("aha", "bcd"), "drafted for without the grammar, if at all"
    with pytest.raises(VocabularyMismatchError, match=r"speaks the ids of another tokenizer"):
        await refused(settings(tiny_dir(swap=(10, 11)), reduced))


async def test_a_verifier_refuses_it_as_its_model(reduced: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"drafter made for .*, and no verifier's"):
        await refused(settings(reduced, "ngram"))


async def test_a_text_to_copy_from_needs_the_targets_tokenizer(
    reduced: Path, tiny_dir: MakeDir, tmp_path: Path
) -> None:
    """The checkpoint has none; one that has its own takes no other."""
    corpus = tmp_path / "text.txt"
    corpus.write_text("some text")

    def cascade(model: Path, **ngram: Any) -> dict[str, Any]:
        section = {"kind": "cascade", "model": model_section(model)}
        return settings(tiny_dir(), drafter={**section, "ngram": {"corpus": str(corpus), **ngram}})

    with pytest.raises(ConfigError, match=r"^drafter\.ngram\.tokenizer is required .*text\.txt"):
        await refused(cascade(reduced))
    with pytest.raises(ConfigError, match=r"^drafter\.ngram\.tokenizer: .* has other ids"):
        await refused(cascade(reduced, tokenizer=str(tiny_dir(swap=(10, 11)))))
    with pytest.raises(ConfigError, match=r"^drafter\.ngram\.tokenizer: .* is of no use"):
        await refused(cascade(tiny_dir(), tokenizer=str(tiny_dir())))
