"""What a drafter loads: any model that a verifier takes, or one of a reduced vocabulary.

All that is said to a reduced model and by it is in the target's ids: the runner maps what goes in,
and `Columns` name what the logits are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from paceline.config import AnyModelConfig, ModelConfig, RuntimeConfig
from paceline.errors import ModelLoadError
from paceline.runtime.draft_vocabulary import FILE_NAME, DraftVocabulary
from paceline.runtime.model_source import find_beside, resolve_source
from paceline.runtime.page_table import PageTable
from paceline.runtime.runner import Chunk, Runner
from paceline.runtime.tokenizer import Tokenizer
from paceline.runtime.worker_model import load_worker_model
from paceline.sampling.columns import Columns
from paceline.types import WorkerInfo


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model ready to draft. One of a reduced vocabulary has `columns` and no tokenizer."""

    runner: Runner
    tokenizer: Tokenizer | None
    info: WorkerInfo
    columns: Columns | None = None


class ReducedRunner:
    """A `Runner` that is fed the target's ids, of a model that has few ids of its own.

    `vocab_size` counts the ids that it takes; its logits have the model's columns.
    """

    def __init__(self, runner: Runner, vocabulary: DraftVocabulary) -> None:
        self.pool = runner.pool
        self.vocab_size = vocabulary.vocab_size
        self.context_length = runner.context_length
        self._runner = runner
        self._input_ids = vocabulary.input_ids

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits `[sum of num_logits, draft ids]`; see `Runner` for the rest."""
        return self._runner.forward([self._in_draft_ids(chunk) for chunk in chunks])

    def keep(self, table: PageTable, start: int, nodes: Sequence[int]) -> None:
        self._runner.keep(table, start, nodes)

    def fork(self, table: PageTable, lengths: Sequence[int], num_tokens: int) -> list[PageTable]:
        return self._runner.fork(table, lengths, num_tokens)

    def _in_draft_ids(self, chunk: Chunk) -> Chunk:
        input_ids = self._input_ids
        return replace(chunk, token_ids=[input_ids[token_id] for token_id in chunk.token_ids])


def load_draft_model(kind: str, model: AnyModelConfig, runtime: RuntimeConfig) -> DraftModel:
    """Load what drafts; takes seconds. Raises `StartupError` naming the setting or the file."""
    if isinstance(model, ModelConfig):
        directory = find_beside(resolve_source(model.path, model.revision), FILE_NAME)
        if directory is not None:
            return _load_reduced(kind, model, DraftVocabulary.read(directory), runtime)
    whole = load_worker_model(kind, model, runtime)
    return DraftModel(whole.runner, whole.tokenizer, whole.info)


def _load_reduced(
    kind: str, model: ModelConfig, vocabulary: DraftVocabulary, runtime: RuntimeConfig
) -> DraftModel:
    # slow imports that a synthetic model does without
    from paceline.runtime.device import device_of  # noqa: PLC0415
    from paceline.runtime.loader import load_model  # noqa: PLC0415
    from paceline.runtime.runner_factory import build_runner  # noqa: PLC0415

    loaded = load_model(model)
    if loaded.vocab_width != vocabulary.num_draft_ids:
        raise ModelLoadError(
            f"model.path: {model.path}: the model has {loaded.vocab_width} ids and its {FILE_NAME}"
            f" names {vocabulary.num_draft_ids}"
        )
    runner = build_runner(loaded, runtime)
    columns = Columns(vocabulary.to_target().to(loaded.model.device), vocabulary.vocab_size)
    device = device_of(loaded.device)
    info = WorkerInfo(
        kind=kind,
        model=f"{model.name}, made for {vocabulary.target_name}",
        dtype=loaded.dtype,
        quantization=loaded.quantization,
        device=loaded.device,
        device_id=device.id,
        device_share=device.share,
        vocab_size=vocabulary.vocab_size,
        tokenizer_fingerprint=vocabulary.tokenizer_fingerprint,
        context_length=runner.context_length,
    )
    return DraftModel(ReducedRunner(runner, vocabulary), None, info, columns)
