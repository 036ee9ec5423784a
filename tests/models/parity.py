"""Comparisons with Transformers: hidden states of backbones, and results of LLMs over tests.tiny.SEQUENCES."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModel, PreTrainedModel

from cenote import LLM, PoolingParams
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.layers.backbone import Backbone
from cenote.loading.describe import describe_model
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from cenote.native.backbone import NativeBackbone
from cenote.packed_batch import pack_arrays, pack_sequences
from tests.tiny import SEQUENCES, change_config, compute_hidden_states, save_tiny

TOLERANCE = 1e-4
RAW = PoolingParams(use_activation=False)

FACTORS = {"embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4}

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


def save_case(folder: Path, case: Case) -> PreTrainedModel:
    """Save the model of a case, and return it as Transformers reads the rewritten config."""
    reference = save_tiny(folder, case.model, **case.changes)
    if not case.drop and not case.rewrite:
        return reference
    change_config(folder, drop=case.drop, **case.rewrite)
    model: PreTrainedModel = AutoModel.from_pretrained(folder).eval()
    return model


def loaded(folder: Path, *, dtype: str = "float32", runtime: str = "torch", **options: Any) -> LoadedModel:
    return load_model(EngineConfig.from_kwargs(str(folder), dtype=dtype, device="cpu", runtime=runtime, **options))


def list_runtimes(folder: Path, **options: Any) -> list[str]:
    """Return the runtimes that can compute a model on this CPU."""
    options |= {"dtype": "float32", "device": "cpu", "runtime": "native"}
    try:
        describe_model(EngineConfig.from_kwargs(str(folder), **options))
    except LoadError as error:
        if "needs the torch runtime" not in error.message:
            raise
        return ["torch"]
    return ["torch", "native"]


def run(
    backbone: torch.nn.Module | NativeBackbone,
    types: list[list[int]] | None = None,
    sequences: list[list[int]] = SEQUENCES,
) -> Tensor:
    if isinstance(backbone, NativeBackbone):
        return torch.from_numpy(backbone(pack_arrays(sequences, types)))
    with torch.inference_mode():
        out: Tensor = backbone(pack_sequences(sequences, types))
    return out


def assert_states(folder: Path, expected: PreTrainedModel | Sequence[Tensor], **options: Any) -> None:
    """Check the hidden states of each runtime against those of a Transformers model, or given ones."""
    states = compute_hidden_states(expected) if isinstance(expected, PreTrainedModel) else list(expected)
    for runtime in list_runtimes(folder, **options):
        model = loaded(folder, runtime=runtime, **options)
        assert_close(run(model.backbone), torch.cat(states), atol=TOLERANCE, rtol=0)


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        assert_close(mine, theirs, atol=TOLERANCE, rtol=0)


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **options)


def encoded(llm: LLM, task: Any, params: PoolingParams | None = None, prompts: Any = SEQUENCES) -> list[Tensor]:
    outputs = llm.encode(prompts, params, pooling_task=task, use_tqdm=False)
    return [output.outputs.data for output in outputs]


def classified(llm: LLM, params: PoolingParams | None = None) -> list[Tensor]:
    return [output.outputs.data for output in llm.classify(SEQUENCES, pooling_params=params, use_tqdm=False)]


def embedded(llm: LLM, prompts: Any = SEQUENCES) -> list[Tensor]:
    return [output.outputs.data for output in llm.embed(prompts, use_tqdm=False)]


def rebuilt(model: LoadedModel, **changes: Any) -> Backbone:
    """Return the backbone with the same weights and one wrong field of the spec."""
    backbone = Backbone(replace(model.description.architecture.backbone, **changes))
    backbone.load_state_dict(model.backbone.state_dict())
    backbone.prepare_buffers(torch.device("cpu"), torch.float32)
    return backbone.eval()
