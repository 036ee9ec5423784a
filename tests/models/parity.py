"""A comparison of hidden states with those of Transformers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cenote.config.engine import EngineConfig
from cenote.layers.backbone import Backbone
from cenote.loading.load import LoadedModel, load_model
from cenote.packed_batch import pack_sequences
from tests.tiny import SEQUENCES

TOLERANCE = 1e-4

LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 500.0}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}


@dataclass(frozen=True)
class Case:
    """A Transformers model, its config changes, and how config.json is rewritten after saving."""

    model: str
    changes: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    rewrite: dict[str, Any] = field(default_factory=dict)


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load_model(EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu", **options))


def run(backbone: torch.nn.Module, types: list[list[int]] | None = None) -> Tensor:
    with torch.inference_mode():
        out: Tensor = backbone(pack_sequences(SEQUENCES, types))
    return out


def rebuilt(model: LoadedModel, **changes: Any) -> Backbone:
    """Return the backbone with the same weights and one wrong field of the spec."""
    backbone = Backbone(replace(model.description.architecture.backbone, **changes))
    backbone.load_state_dict(model.backbone.state_dict())
    backbone.prepare_buffers(torch.device("cpu"), torch.float32)
    return backbone.eval()
