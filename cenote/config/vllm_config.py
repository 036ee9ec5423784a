"""VllmConfig: the configuration object that plugins get, under its name in `vllm.config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """The configuration of a loaded model."""

    model_config: Any  # a ModelConfig of `cenote.loading.model_config`
