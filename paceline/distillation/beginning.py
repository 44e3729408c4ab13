"""An older drafter that a student begins as, rather than as the target's bare layers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from paceline.config import ModelConfig
from paceline.distillation.delivery import README
from paceline.distillation.recipe import TrainingSettings
from paceline.errors import ConfigError
from paceline.runtime.draft_vocabulary import DraftVocabulary
from paceline.runtime.loader import LoadedModel, load_model
from paceline.runtime.model_source import resolve_source
from paceline.runtime.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Beginning:
    """A drafter's checkpoint: its directory, its ids, and the SHA-256 of its weights."""

    directory: Path
    vocabulary: DraftVocabulary
    digest: str

    @classmethod
    def read(cls, path: str, tokenizer: Tokenizer) -> Beginning:
        """Find a drafter for the target of this tokenizer.

        Raises `ConfigError` or `ModelLoadError` saying what `path` lacks.
        """
        directory = Path(resolve_source(path).name)
        vocabulary = DraftVocabulary.read(directory)
        if vocabulary.tokenizer_fingerprint != tokenizer.fingerprint:
            raise ConfigError(
                f"--start-from: {path} drafts for {vocabulary.target_name}, whose tokenizer is not"
                " the target's"
            )
        try:
            digest = hashlib.sha256((directory / WEIGHTS).read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(f"--start-from: {directory / WEIGHTS}: {error.strerror}") from error
        return cls(directory, vocabulary, digest)

    def layers(self, settings: TrainingSettings) -> tuple[int, ...]:
        """The target's layers that it was made of. Raises `ConfigError` if others are wanted."""
        made_of = self.vocabulary.layers
        if settings.layers not in (None, made_of):
            raise ConfigError(
                f"--layers: {settings.layers} was asked for and --start-from {self.directory} is"
                f" made of {made_of}"
            )
        return made_of

    def load(self, target: ModelConfig) -> LoadedModel:
        """The checkpoint on the target's device. Raises `ModelLoadError`."""
        return load_model(ModelConfig(path=str(self.directory), device=target.device))

    @property
    def page(self) -> str:
        """What its own page says; empty without one."""
        path = self.directory / README
        return path.read_text(encoding="utf-8") if path.exists() else ""
