"""Layout: what the files of a checkpoint say, however they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cenote.errors import LoadError, PoolingError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.model_card import PublishedCard
from cenote.loading.sentence_transformers import SentenceTransformersFiles, read_sentence_transformers_files
from cenote.models.architecture import HFConfig, StoredProjection


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the files of a checkpoint say, however they are laid out."""

    checkpoint: Checkpoint  # with the folder of its encoder
    config: HFConfig  # config.json, or what stands for it, with hf_overrides
    files: SentenceTransformersFiles
    card: PublishedCard = PublishedCard()
    find_tokenizer: Callable[[], Checkpoint] | None = None  # finds the checkpoint with the tokenizer; None: this one
    projection: StoredProjection | None = None  # of an encoder that is known by its name
    doubts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checkpoint without owner, and the path that it was trained or saved from."""
        return (*self.checkpoint.candidate_names, str(self.config.get("_name_or_path", "")))

    @property
    def published_names(self) -> list[tuple[str, str]]:
        """The names of a published model that files and folder have, without owner, each with its source."""
        *names, origin = self.names
        named = [(name, f"the name {name}") for name in names]
        named.append((origin.rstrip("/").rpartition("/")[2], f"config.json _name_or_path {origin.rstrip('/')}"))
        return named + [(name.rpartition("/")[2], f"README.md model-index {name}") for name in self.card.own_names]


def read_files(checkpoint: Checkpoint, config: HFConfig) -> SentenceTransformersFiles:
    """Return the settings of Sentence Transformers files; empty if there are none."""
    with explain_invalid_values(config):
        return read_sentence_transformers_files(checkpoint) or SentenceTransformersFiles()


@contextmanager
def explain_invalid_values(config: HFConfig) -> Iterator[None]:
    """Raise LoadError for the errors of values that have another type than expected, as in a file written by hand."""
    try:
        yield
    except (TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        raise LoadError(f"{config.source}: invalid value in the config: {type(error).__name__}: {error}") from error
