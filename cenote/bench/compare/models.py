"""Models of a comparison: given folders, generated checkpoints, and ONNX or OpenVINO exports."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cenote.bench.compare.engines import EMBED_IMAGES, SCORE, TOKEN_CLASSIFY
from cenote.bench.compare.images import write_clip
from cenote.bench.compare.worker import COMMON_ENVIRONMENT, SCRIPTS, WorkerFailed
from cenote.bench.process_group import run_in_group
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import find_checkpoint
from cenote.loading.default_model import find_default_model
from cenote.loading.describe import describe_model

MAX_TOKENS = 512
NUM_TAGS = 9  # BIO labels of four entity types
EXPORT_TIMEOUT_S = 600


@dataclass(frozen=True)
class ComparedModel:
    folder: Path
    title: str
    task: str

    @cached_property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = json.loads((self.folder / "config.json").read_text())
        return config

    def max_tokens(self, requested: int | None) -> int:
        """Return the common truncation length: the requested one or 512, at most the positions of the model."""
        text_config = self.config.get("text_config", self.config)
        positions = text_config.get("max_position_embeddings") or MAX_TOKENS
        return int(min(requested or MAX_TOKENS, positions))

    def pooling_settings(self) -> tuple[str, int]:
        """Return the pooling type and the embedding size, for engines that need them as settings."""
        plan = describe_model(EngineConfig.from_kwargs(str(self.folder))).plan
        if plan.seq_pooling_types.value not in (("MEAN",), ("CLS",)) or not plan.use_activation.value:
            raise WorkerFailed(
                f"supports normalized MEAN or CLS pooling only; this model uses {plan.seq_pooling_types.value}"
            )
        return plan.seq_pooling_types.value[0], plan.matryoshka.full_size


def prepare_model(task: str, name: str | None, scratch: Path) -> ComparedModel:
    """Find a model by folder or hub name; None gives the default model, with a random head if the task needs one."""
    if name is not None:
        folder = find_checkpoint(name).folder
        return ComparedModel(folder, folder.name, task)
    folder = find_checkpoint(find_default_model()).folder
    if task == EMBED_IMAGES:
        write_clip(scratch / task, folder / "tokenizer.json")
        return ComparedModel(scratch / task, "CLIP ViT-B/32 with random weights", task)
    if task in (SCORE, TOKEN_CLASSIFY):
        generated = scratch / task
        add_random_head(folder, generated, num_labels=1 if task == SCORE else NUM_TAGS, task=task)
        return ComparedModel(generated, "all-MiniLM-L6-v2 under a random head", task)
    return ComparedModel(folder, "all-MiniLM-L6-v2", task)


def add_random_head(source: Path, folder: Path, *, num_labels: int, task: str) -> None:
    """Write a BERT classifier with a random head: meaningless outputs, realistic cost."""
    config = json.loads((source / "config.json").read_text())
    if config.get("model_type") != "bert":
        raise LoadError(
            f"cannot add a random head to {source}: expected model_type bert, got {config.get('model_type')}"
        )
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    kind = "Sequence" if task == SCORE else "Token"
    labels = {str(at): f"LABEL_{at}" for at in range(num_labels)}
    config |= {
        "architectures": [f"BertFor{kind}Classification"],
        "id2label": labels,
        "label2id": {label: int(at) for at, label in labels.items()},
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    weights = {f"bert.{name}": tensor for name, tensor in tensors.items() if not name.endswith("position_ids")}
    if task == TOKEN_CLASSIFY:
        weights = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    random = torch.Generator().manual_seed(0)
    weights["classifier.weight"] = torch.randn(num_labels, config["hidden_size"], generator=random) * 0.02
    weights["classifier.bias"] = torch.zeros(num_labels)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def export_model(model: ComparedModel, python: Path, folder: Path) -> ComparedModel:
    """Copy the model and export it to onnx/model.onnx and OpenVINO files with Sentence Transformers."""
    task = SCORE if model.task == SCORE else "embed"
    command = [str(python), str(SCRIPTS / "export_onnx.py"), str(model.folder), task, str(folder)]
    with tempfile.TemporaryFile() as log:
        try:
            status = run_in_group(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                timeout_s=EXPORT_TIMEOUT_S,
                environment=COMMON_ENVIRONMENT,
            )
        except subprocess.TimeoutExpired:
            raise WorkerFailed(f"the export took more than {EXPORT_TIMEOUT_S} s") from None
        if status:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise WorkerFailed(f"the export failed: {' / '.join(lines[-2:])}")
    return ComparedModel(folder, model.title, model.task)
