"""Which models can be split over several ranks, and the parts of a model that are split besides its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.layers.parallel_group import ParallelGroup
from cenote.loading.adapter_files import may_have_adapters
from cenote.loading.model_description import ModelDescription
from cenote.pooling.heads import Heads, SpladeHead
from cenote.pooling.parallel_splade import ParallelSpladeHead

StartRanks: TypeAlias = Callable[[ModelDescription], ParallelGroup]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of model that cannot be split."""

    label: str
    reason: str
    applies: Callable[[ModelDescription, EngineConfig], bool]


def _has_adapters(description: ModelDescription, options: EngineConfig) -> bool:
    return may_have_adapters(options, description.checkpoint, description.architecture)


REFUSALS = (
    Refusal(
        "models of IO processor plugins",
        "the plugin implements the model",
        lambda description, options: description.kind.value == "tensors",
    ),
    Refusal(
        "models on the Transformers backend",
        "only Cenote's own layers can be split",
        lambda description, options: description.entry.uses_transformers,
    ),
    Refusal(
        "models with images",
        "the vision tower and its image inputs exist on one device only",
        lambda description, options: description.architecture.vision is not None,
    ),
    Refusal(
        "static embeddings",
        "a table has no layers to split",
        lambda description, options: description.architecture.is_static,
    ),
    Refusal(
        "models with a Router",
        "each of its routes would need ranks of its own",
        lambda description, options: description.has_routes,
    ),
    Refusal(
        "LoRA adapters",
        "adapters of requests are not split; merge the adapter into the model (`merge_and_unload` of PEFT)",
        _has_adapters,
    ),
)


def check_can_split(description: ModelDescription, options: EngineConfig) -> None:
    """Raise LoadError with the reason if a model cannot be split; the sizes of its layers are checked later."""
    for refusal in REFUSALS:
        if refusal.applies(description, options):
            raise LoadError(
                f"tensor_parallel_size={options.tensor_parallel_size} is not supported for {refusal.label}: "
                f"{refusal.reason}; use tensor_parallel_size=1"
            )


def split_heads(heads: Heads, group: ParallelGroup) -> Heads:
    """Return the heads with the vocabulary of a SPLADE head split over the ranks; others run on the first rank."""
    if isinstance(heads.splade, SpladeHead):
        heads.splade = ParallelSpladeHead(heads.splade, group)
    return heads
