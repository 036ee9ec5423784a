"""LoRA adapters as peft saves them, and models with adapters in their checkpoint."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.models.rotary_encoders import TASKS
from tests.tiny import tiny_bert

RANK, ALPHA = 3, 6.0

QWEN_TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")

BERT_TARGETS = ("attention.self.key", "attention.output.dense", "intermediate.dense")


def save_adapter(
    folder: Path, model: PreTrainedModel, targets: tuple[str, ...], *, seed: int, prefix: str = "", **config: Any
) -> PreTrainedModel:
    """Write a PEFT folder for the named layers; return the model with the adapter merged."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    merged, tensors = deepcopy(model), dict[str, Tensor]()
    scale = config.pop("scale", ALPHA / RANK)
    for name, parameter in merged.named_parameters():
        module = name.removesuffix(".weight")
        if not name.endswith("weight") or not module.endswith(targets):
            continue
        rows, columns = parameter.shape
        is_table = "embed" in module
        down = torch.randn(RANK, rows if is_table else columns, generator=generator) * 0.3
        up = torch.randn(columns if is_table else rows, RANK, generator=generator) * 0.3
        change = (up @ down).T if is_table else up @ down
        parameter.data += scale * change
        a, b = ("lora_embedding_A", "lora_embedding_B") if is_table else ("lora_A.weight", "lora_B.weight")
        tensors[f"base_model.model.{prefix}{module}.{a}"] = down
        tensors[f"base_model.model.{prefix}{module}.{b}"] = up
    assert tensors, "the model has none of these layers"
    save_file(tensors, folder / "adapter_model.safetensors")
    dropped = config.pop("drop", ())
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    settings = {key: value for key, value in settings.items() if key not in dropped}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return merged


def merge_jina_v3_task(reference: PreTrainedModel, folder: Path, task: str) -> PreTrainedModel:
    """Merge the stored tensors of a task: original + up @ down * scaling."""
    tensors, row, changed = load_file(folder / "model.safetensors"), TASKS.index(task), dict[str, Tensor]()
    for name, original in tensors.items():
        if not name.endswith(".original"):
            continue
        stem = name.removesuffix(".original")
        first, second = tensors[f"{stem}.0.lora_A"][row], tensors[f"{stem}.0.lora_B"][row]
        change = first @ second if "embeddings" in name else second @ first
        changed[stem.removeprefix("roberta.").removesuffix(".parametrizations.weight")] = original + 0.5 * change
    model = deepcopy(reference)
    model.embeddings.word_embeddings.weight.data = changed["embeddings.word_embeddings"]
    model.embeddings.token_type_embeddings.weight.data = changed["embeddings.token_type_embeddings"]
    for number, layer in enumerate(model.layers):
        rows = changed[f"encoder.layers.{number}.mixer.Wqkv"].chunk(3)
        attention = layer.self_attn
        for projection, part in zip((attention.q_proj, attention.k_proj, attention.v_proj), rows, strict=True):
            projection.weight.data = part
        attention.o_proj.weight.data = changed[f"encoder.layers.{number}.mixer.out_proj"]
        layer.mlp.fc1.weight.data = changed[f"encoder.layers.{number}.mlp.fc1"]
        layer.mlp.fc2.weight.data = changed[f"encoder.layers.{number}.mlp.fc2"]
    return model


def save_model_and_adapters(folder: Path) -> Path:
    model = tiny_bert(folder / "model")
    for seed, name in enumerate(("first", "late")):
        save_adapter(folder / name, model, BERT_TARGETS, seed=seed)
    return folder
