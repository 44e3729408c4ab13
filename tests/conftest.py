"""Fixtures that several test folders share: tiny models on disk and what they ought to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

MakeDir = Callable[..., Path]
Reference = Callable[..., list[int]]


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> MakeDir:
    """Makes model directories: a random float32 Llama with a byte tokenizer of 258 ids or more.

    The same arguments give the same directory. `vocab_size` is the width of the head, `specials`
    the number of further ids, `tokenizer` arguments of `build_byte_tokenizer`.
    """

    @cache
    def make(
        seed: int = 0,
        vocab_size: int = 320,
        *,
        specials: int = 0,
        eos_token_id: int | tuple[int, ...] = 257,
        context: int = 512,
        swap: tuple[int, int] | None = None,
        bos: str | None = None,
        hidden_size: int = 32,
    ) -> Path:
        from support.byte_tokenizer import CHAT_TEMPLATE, build_byte_tokenizer
        from support.tiny_models import save_tiny_model

        tokenizer = build_byte_tokenizer(
            extra_special=[f"<extra{index}>" for index in range(specials)],
            chat_template=CHAT_TEMPLATE,
            swap=swap,
            add_bos=True,
        )
        if bos is not None:
            tokenizer.bos_token = bos
        ends: Any = list(eos_token_id) if isinstance(eos_token_id, tuple) else eos_token_id
        return save_tiny_model(
            tmp_path_factory.mktemp("tiny"),
            seed=seed,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            eos_token_id=ends,
            max_position_embeddings=context,
            hidden_size=hidden_size,
        )

    return make


@pytest.fixture(scope="session")
def byte_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of one byte an id (258 ids) without a model; plain encoding adds no BOS."""
    from support.byte_tokenizer import CHAT_TEMPLATE, build_byte_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    build_byte_tokenizer(chat_template=CHAT_TEMPLATE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def greedy() -> Reference:
    """REF: `greedy(directory, prompt ids, number of tokens, vocab_size=...)`, transformers' own
    greedy `generate`; ids from `vocab_size` on are padding of the head and never generated."""
    import torch
    from transformers import AutoModelForCausalLM

    @cache
    def load(path: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def generate(
        path: Path, prompt: Sequence[int], num_tokens: int, *, vocab_size: int = 258
    ) -> list[int]:
        model = load(path)
        ids = torch.tensor([list(prompt)])
        padding = list(range(vocab_size, model.config.vocab_size))
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            suppress_tokens=padding or None,
            pad_token_id=0,
        )
        found: list[int] = output[0, len(prompt) :].tolist()
        return found

    return generate
