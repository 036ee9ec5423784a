"""Tiny checkpoints that stand for the models of vLLM's guide: same architecture and file layout, random weights."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from cenote import LLM
from cenote.cli.serve import parse_config
from tests.models.test_colbert import Rules, save_pylate, save_stanford
from tests.models.test_reward import internlm2, outcome, process
from tests.models.tiny_qwen3_vl import save_tiny_colqwen3
from tests.scoring.test_rerankers import save_reranker
from tests.tiny import change_config, save_tiny, tiny_bge_m3

EXACT: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
EXAMPLES = Path(__file__).parents[2] / "examples"
GREETING = "Hello, my name is"


def save_jina_colbert(folder: Path) -> object:
    """Save the layout of jina-colbert-v2: XLM-RoBERTa with rotary positions and markers of its own."""
    rules = Rules(query_marker="[QueryMarker]", document_marker="[DocumentMarker]", attends=True, document_length=66)
    colbert = save_stanford(folder, "JinaEmbeddingsV3Model", rules, None)
    theta = json.loads((folder / "config.json").read_text())["rope_parameters"]["rope_theta"]
    published = {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": theta}
    change_config(folder, drop=("rope_parameters",), **published)
    return colbert


def save_stanford_colbert(folder: Path) -> object:
    """Save the layout of answerai-colbert-small-v1."""
    markers = Rules(query_marker="[unused0]", document_marker="[unused1]", query_length=32, document_length=66)
    return save_stanford(folder, "BertModel", markers, None)


def save_sentence_transformer(folder: Path) -> object:
    """Save a BERT whose modules.json says MEAN; the default of BERT is CLS."""
    reference = save_tiny(folder, "BertModel")
    modules = ["Transformer", "Pooling"]
    rows = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return reference


def save_projected_embedder(folder: Path) -> Tensor:
    """Save a BERT with mean pooling and a Dense module of 12 dimensions; return the matrix of the Dense module."""
    save_sentence_transformer(folder)
    rows = json.loads((folder / "modules.json").read_text())
    rows.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "2_Dense").mkdir()
    identity = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": 32, "out_features": 12, "bias": False, "activation_function": identity}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(sizes))
    matrix = torch.randn(12, 32, generator=torch.Generator().manual_seed(5))
    save_file({"linear.weight": matrix}, folder / "2_Dense" / "model.safetensors")
    return matrix


def save_jina_reranker(folder: Path) -> object:
    """Save the layout of jina-reranker-v3: a Qwen3 with a projector and two special tokens."""
    reference = save_tiny(folder, "Qwen3ForCausalLM", max_position_embeddings=900, tie_word_embeddings=True)
    torch.manual_seed(0)
    projector = nn.Sequential(nn.Linear(32, 16, bias=False), nn.ReLU(), nn.Linear(16, 12, bias=False))
    weights = {f"projector.{name}": tensor for name, tensor in projector.state_dict().items()}
    file = folder / "model.safetensors"
    save_file(load_file(file) | weights, file, metadata={"format": "pt"})
    change_config(folder, architectures=["JinaForRanking"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|embed_token|>", "<|rerank_token|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return reference


def write_colour_model(folder: Path) -> object:
    """Write the ColQwen3 checkpoint of the examples, which recognises colours."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return import_module("tiny_colqwen3").write_checkpoint(folder)
    finally:
        sys.path.remove(str(EXAMPLES))
        sys.modules.pop("tiny_colqwen3", None)


def save_ops_colqwen3(folder: Path) -> object:
    """Save the layout of Ops-Colqwen3-4B."""
    layout = {"architecture": "OpsColQwen3Model", "projection": "custom_text_proj", "dims": 8}
    return save_tiny_colqwen3(folder, renamed=lambda name: name.removeprefix("model."), **layout)


def save_qwen_classifier(folder: Path) -> object:
    return save_tiny(folder, "Qwen2ForSequenceClassification", id2label={0: "good", 1: "bad"})


MAKERS: dict[str, Callable[[Path], Any]] = {
    "bert": lambda folder: save_tiny(folder, "BertModel"),
    "mean bert": save_sentence_transformer,
    "projected bert": save_projected_embedder,
    "bert classifier": lambda folder: save_tiny(folder, "BertForSequenceClassification", num_labels=3),
    "bert tagger": lambda folder: save_tiny(folder, "BertForTokenClassification", num_labels=4),
    "qwen3": lambda folder: save_tiny(folder, "Qwen3Model"),
    "qwen3 causal": lambda folder: save_tiny(folder, "Qwen3ForCausalLM"),
    "qwen3 classifier": lambda folder: save_tiny(folder, "Qwen3ForSequenceClassification", num_labels=3),
    "qwen3 one label": lambda folder: save_tiny(folder, "Qwen3ForSequenceClassification", num_labels=1),
    "qwen3 tagger": lambda folder: save_tiny(folder, "Qwen3ForTokenClassification", num_labels=4),
    "apeach": save_qwen_classifier,
    "bge-reranker": lambda folder: save_tiny(
        folder, "XLMRobertaForSequenceClassification", num_labels=1, max_position_embeddings=258
    ),
    "internlm2 reward": internlm2,
    "math rm": outcome,
    "process rm": process,
    "bge-m3": tiny_bge_m3,
    "colbert": save_stanford_colbert,
    "modern colbert": lambda folder: save_pylate(folder, "ModernBertModel"),
    "jina colbert": save_jina_colbert,
    "colours": write_colour_model,
    "ops colqwen3": save_ops_colqwen3,
    "qwen3 reranker": lambda folder: save_reranker(folder, "Qwen3ForCausalLM"),
    "jina reranker": save_jina_reranker,
}


class Models:
    """Tiny checkpoints, each written once, and models loaded from them, each once per set of options."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.references: dict[str, Any] = {}
        self.loaded: dict[str, LLM] = {}

    def folder(self, name: str) -> Path:
        folder = self.root / name.replace(" ", "-")
        if name not in self.references:
            folder.mkdir()
            self.references[name] = MAKERS[name](folder)
        return folder

    def reference(self, name: str) -> Any:
        """What the function that saved the checkpoint returned: in most cases the Transformers model."""
        self.folder(name)
        return self.references[name]

    def load(self, name: str, **options: Any) -> LLM:
        key = f"{name} {sorted(options.items())}"
        if key not in self.loaded:
            self.loaded[key] = LLM(model=str(self.folder(name)), **EXACT | {"served_model_name": name} | options)
        return self.loaded[key]

    def load_as_served(self, name: str, *flags: str) -> LLM:
        """Load a checkpoint with the options that `cenote serve` gets from these flags."""
        _, options = parse_config([str(self.folder(name)), *flags], {})
        del options["model"]
        return self.load(name, **{option: value for option, value in options.items() if value is not None})

    def copy(self, name: str, folder: Path) -> Path:
        shutil.copytree(self.folder(name), folder, dirs_exist_ok=True)
        return folder

    def close(self) -> None:
        for llm in self.loaded.values():
            llm.close()


def data_of(outputs: Sequence[Any]) -> list[Tensor]:
    return [output.outputs.data for output in outputs]


def encode(llm: LLM, prompts: Any, task: str, params: Any = None) -> list[Tensor]:
    return data_of(llm.encode(prompts, params, pooling_task=task, use_tqdm=False))


def score(llm: LLM, queries: Any, documents: Any, **options: Any) -> list[float]:
    return [output.outputs.score for output in llm.score(queries, documents, use_tqdm=False, **options)]
