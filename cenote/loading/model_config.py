"""ModelConfig: public facts about a loaded model, under the names of vLLM's class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cenote.config.pooler import PoolerConfig
from cenote.models.architecture import HFConfig
from cenote.pooling.plan import PoolingPlan
from cenote.protocol.params import FORMER_TASKS
from cenote.utils.dtypes import Dtype

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Public facts about a loaded model, for callers and plugins."""

    model: str  # the hub name or folder
    served_model_name: str  # in messages and responses
    folder: Path  # of the checkpoint
    hf_config: HFConfig  # config.json, with hf_overrides applied
    max_model_len: int
    embedding_size: int
    dtype_name: Dtype
    head_dtype_name: Dtype  # of pooling, projectors and classifiers
    pooling_plan: PoolingPlan

    @property
    def dtype(self) -> torch.dtype:
        return _import_dtype(self.dtype_name)

    @property
    def head_dtype(self) -> torch.dtype:
        return _import_dtype(self.head_dtype_name)

    @property
    def pooler_config(self) -> PoolerConfig:
        """The pooling settings in use: options, then the model's files, then its defaults."""
        return self.pooling_plan.resolve_pooler_config()

    def uses_activation(self, task: str) -> bool:
        """Return whether a task normalizes or applies its activation by default."""
        return self.pooling_plan.uses_activation(FORMER_TASKS.get(task, task))

    @property
    def is_matryoshka(self) -> bool:
        return self.pooling_plan.matryoshka.is_supported

    @property
    def matryoshka_dimensions(self) -> list[int] | None:
        """The embedding sizes that requests may ask for; None: any, if the model supports it at all."""
        return list(self.pooling_plan.matryoshka.sizes) or None


def _import_dtype(name: Dtype) -> torch.dtype:
    """Return a dtype as vLLM's class has it; torch is imported for who asks."""
    from cenote.layers.torch_dtypes import to_torch_dtype

    return to_torch_dtype(name)
