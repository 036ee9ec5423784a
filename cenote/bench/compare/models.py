"""The models of a comparison: folders that were given, stand-ins where none was, exports for who reads no weights."""

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
NUM_TAGS = 9  # as in the usual four kinds of entities, beginnings and insides, and nothing
EXPORT_TIMEOUT_S = 600


@dataclass(frozen=True)
class ComparedModel:
    folder: Path
    title: str
    task: str

    @cached_property
    def config(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads((self.folder / "config.json").read_text())
        return found

    def max_tokens(self, requested: int | None) -> int:
        """One limit for everybody: what was asked for, or 512, as far as the model has positions."""
        texts = self.config.get("text_config", self.config)
        positions = texts.get("max_position_embeddings") or MAX_TOKENS
        return int(min(requested or MAX_TOKENS, positions))

    def pooling_settings(self) -> tuple[str, int]:
        """How token states become a vector, and its size: for engines that must be told."""
        plan = describe_model(EngineConfig.from_kwargs(str(self.folder))).plan
        if plan.seq_pooling_types.value not in (("MEAN",), ("CLS",)) or not plan.use_activation.value:
            raise WorkerFailed(
                f"pools by the normalised mean or the first token, and this model needs {plan.seq_pooling_types.value}"
            )
        return plan.seq_pooling_types.value[0], plan.matryoshka.full_size


def prepare_model(task: str, name: str | None, scratch: Path) -> ComparedModel:
    """Of a folder or a hub's name; without one the default model, under a random head where the task needs a head."""
    if name is not None:
        folder = find_checkpoint(name).folder
        return ComparedModel(folder, folder.name, task)
    folder = find_checkpoint(find_default_model()).folder
    if task == EMBED_IMAGES:
        write_clip(scratch / task, folder / "tokenizer.json")
        return ComparedModel(scratch / task, "CLIP ViT-B/32 with random weights", task)
    if task in (SCORE, TOKEN_CLASSIFY):
        made = scratch / task
        add_random_head(folder, made, num_labels=1 if task == SCORE else NUM_TAGS, task=task)
        return ComparedModel(made, "all-MiniLM-L6-v2 under a random head", task)
    return ComparedModel(folder, "all-MiniLM-L6-v2", task)


def add_random_head(source: Path, folder: Path, *, num_labels: int, task: str) -> None:
    """A BERT classifier whose answers mean nothing and whose work is that of a real one."""
    config = json.loads((source / "config.json").read_text())
    if config.get("model_type") != "bert":
        raise LoadError(f"a stand-in is made from a BERT, and {source} is none")
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
    used = load_file(source / "model.safetensors")
    weights = {f"bert.{name}": tensor for name, tensor in used.items() if not name.endswith("position_ids")}
    if task == TOKEN_CLASSIFY:
        weights = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    random = torch.Generator().manual_seed(0)
    weights["classifier.weight"] = torch.randn(num_labels, config["hidden_size"], generator=random) * 0.02
    weights["classifier.bias"] = torch.zeros(num_labels)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def export_model(model: ComparedModel, python: Path, folder: Path) -> ComparedModel:
    """A copy with onnx/model.onnx and OpenVINO files in it, made by the peer's own tools."""
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
