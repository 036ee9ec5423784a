"""Tiny jina-embeddings-v4 checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen2_5_VLModel

from tests.models.col_models import QWEN_COL_TOKENS, RANK, TEXT_LAYERS, write_adapter_config
from tests.models.qwen_vl import IMAGE_TOKEN, PATCHES, TEXT, TOWER, VISION
from tests.tiny import randomize, save_tokenizer

TASKS = ["retrieval", "text-matching", "code"]

Updates = dict[str, dict[str, Tensor]]  # task -> module -> change of its weight


def save_jina_v4(folder: Path) -> tuple[Any, nn.Linear, Updates]:
    """Write config.json, weights and `adapters/` with the adapters of all tasks in one file."""
    tokenizer = save_tokenizer(folder, QWEN_COL_TOKENS, max_length=512, two_types=False)
    ids = {"image_token_id": tokenizer.token_to_id(IMAGE_TOKEN)}
    ids |= {"vision_start_token_id": tokenizer.token_to_id("<|vision_start|>")}
    config = Qwen2_5_VLModel.config_class(text_config=dict(TEXT), vision_config=VISION | TOWER, **ids)
    model, projector = Qwen2_5_VLModel(config).eval().requires_grad_(False), nn.Linear(32, 8).requires_grad_(False)
    randomize(model, std=0.2)
    randomize(projector, seed=1)
    written = {
        **config.to_dict(),
        "architectures": ["JinaEmbeddingsV4Model"],
        "matryoshka_dims": [8, 16, 32],
        "multi_vector_projector_dim": 8,
        "single_vector_pool_strategy": "mean",
        "task_names": TASKS,
    }
    (folder / "config.json").write_text(json.dumps(written))
    (folder / "preprocessor_config.json").write_text(json.dumps(PATCHES))
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]
    (folder / "modules.json").write_text(json.dumps(modules))
    stored = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    stored |= {f"multi_vector_projector.{name}": tensor for name, tensor in projector.state_dict().items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return model, projector, write_adapters(folder, model, projector)


def write_adapters(folder: Path, model: Any, projector: nn.Linear) -> Updates:
    generator, tensors = torch.Generator().manual_seed(3), dict[str, Tensor]()
    layers = {
        name: module for name, module in model.language_model.named_modules() if name.rpartition(".")[2] in TEXT_LAYERS
    }
    updates: Updates = {task: {} for task in TASKS}
    for name, module in [*layers.items(), ("multi_vector_projector", projector)]:
        rows, columns = module.weight.shape
        path = name if module is projector else f"model.language_model.{name}"
        for task in TASKS:
            down, up = (torch.randn(shape, generator=generator) * 0.3 for shape in ((RANK, columns), (rows, RANK)))
            tensors[f"base_model.model.{path}.lora_A.{task}.weight"] = down
            tensors[f"base_model.model.{path}.lora_B.{task}.weight"] = up
            updates[task][name] = up @ down
    (folder / "adapters").mkdir()
    save_file(tensors, folder / "adapters" / "adapter_model.safetensors")
    write_adapter_config(folder / "adapters", "jinaai/jina-embeddings-v4", lora_alpha=RANK)
    return updates
