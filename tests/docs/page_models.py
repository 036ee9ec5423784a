"""Small models in the place of those that pages name.

The functions import what only the environment of the tests has. That of a reader gets the folders of models that the
tests have made: the variable `MODELS_VARIABLE` names the folder with all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tests.docs.code_blocks import ROOT

MODELS_VARIABLE = "TEST_PAGE_MODELS"


@dataclass(frozen=True)
class PageModel:
    hub_name: str
    save: Callable[[Path], object] | None = None  # None: the default model


def save_prompts_model(folder: Path) -> None:
    """Save a model of Sentence Transformers with a prompt for queries."""
    from tests.tiny import save_tiny

    save_tiny(folder, "BertModel")
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the old book: "}}))


def save_colbert(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from tests.tiny import change_config, save_tiny

    save_tiny(folder, "BertModel")
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, architectures=["HF_ColBERT"])


def save_splade(folder: Path) -> None:
    from tests.tiny import tiny_splade

    tiny_splade(folder)


def save_cross_encoder(folder: Path) -> None:
    from tests.tiny import save_tiny

    save_tiny(folder, "BertForSequenceClassification", num_labels=1)


def save_colqwen3(folder: Path) -> None:
    """Save the model of the examples, and the image of the page."""
    from PIL import Image

    spec = spec_from_file_location("tiny_colqwen3", ROOT / "examples" / "tiny_colqwen3.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_checkpoint(folder)
    Image.new("RGB", (64, 96), "red").save(folder / "scan.png")


DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
# small models with random weights have the place of those on the hub, or the default model, which does the same tasks
MODELS = {
    "default": PageModel(DEFAULT),
    "protected": PageModel(DEFAULT),  # with an API key
    "bge_m3": PageModel("BAAI/bge-m3"),
    "e5": PageModel("intfloat/e5-small"),
    "reranker": PageModel("BAAI/bge-reranker-v2-m3"),
    "cross_encoder": PageModel("cross-encoder/ms-marco-MiniLM-L12-v2", save_cross_encoder),
    "splade": PageModel("naver/splade-v3-distilbert", save_splade),
    "colbert": PageModel("answerdotai/answerai-colbert-small-v1", save_colbert),
    "colqwen3": PageModel("TomoroAI/tomoro-colqwen3-embed-4b", save_colqwen3),
    "prompts": PageModel("Snowflake/snowflake-arctic-embed-m-v1.5", save_prompts_model),
}


def make_model(name: str, parent: Path) -> Path | None:
    """Return the folder of a model, which is made where there is none; None for the default model."""
    save, folder = MODELS[name].save, parent / name
    if save is None:
        return None
    if not folder.exists():
        folder.mkdir()
        save(folder)
    return folder
