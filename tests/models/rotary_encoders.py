"""Tiny rotary encoders in the files of their publishers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.tiny import save_tiny


@dataclass(frozen=True)
class Published:
    """A published layout: architecture name, config.json, and the prefix of backbone names below a head."""

    stem: str
    config: Callable[[Mapping[str, Any]], dict[str, Any]]  # from the Transformers config
    prefix: tuple[str, str] = ("", "")  # in Transformers, and in this layout


def nomic_config(new: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "causal": False,
        "layer_norm_epsilon": new["layer_norm_eps"],
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "n_embd": new["hidden_size"],
        "n_head": new["num_attention_heads"],
        "n_inner": new["intermediate_size"],
        "n_layer": new["num_hidden_layers"],
        "n_positions": new["max_position_embeddings"],
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_base": new["rope_parameters"]["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "type_vocab_size": new["type_vocab_size"],
        "vocab_size": new["vocab_size"],
    }


def gte_config(new: Mapping[str, Any]) -> dict[str, Any]:
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "architectures")}
    return old | {
        "model_type": "new",
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": None,
        "rope_theta": new["rope_parameters"]["rope_theta"],
        "unpad_inputs": False,
    }


def jina_config(new: Mapping[str, Any]) -> dict[str, Any]:
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "architectures")}
    theta = new["rope_parameters"]["rope_theta"]
    return old | {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": theta}


def eurobert_config(new: Mapping[str, Any]) -> dict[str, Any]:
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "classifier_pooling")}
    pooling = {"clf_pooling": new["classifier_pooling"]} if "classifier_pooling" in new else {}
    return old | pooling | {"rope_theta": new["rope_parameters"]["rope_theta"], "rope_scaling": None}


PUBLISHED = {
    "NomicBert": Published("NomicBert", nomic_config, ("nomic_bert.", "bert.")),
    "Gte": Published("New", gte_config, ("gte.", "new.")),
    "JinaEmbeddingsV3": Published("XLMRoberta", jina_config, ("roberta.", "roberta.")),
    "EuroBert": Published("EuroBert", eurobert_config),
}


def lay_out(folder: Path, reference: PreTrainedModel, layout: str, **config: Any) -> None:
    """Rewrite a checkpoint of save_tiny to a published layout."""
    if layout == "Transformers, its own names":
        before = set(load_file(folder / "model.safetensors"))
        reference.save_pretrained(folder, save_original_format=False)
        after = set(load_file(folder / "model.safetensors"))
        assert ("EuroBert" in type(reference).__name__) == (before == after)
    if layout == "published":
        name = type(reference).__name__
        stem = next(stem for stem in PUBLISHED if name.startswith(stem))
        family = PUBLISHED[stem]
        rename(folder, lambda key: key.replace(*family.prefix) if key.startswith(family.prefix[0]) else key)
        file = folder / "config.json"
        written = json.loads(file.read_text())
        labels = {key: written[key] for key in ("id2label", "label2id", "pad_token_id") if key in written}
        architectures = [name.replace(stem, family.stem)]
        file.write_text(json.dumps(labels | family.config(written) | {"architectures": architectures} | config))


def rename(folder: Path, new_name: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    tensors = {new_name(name): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]

RANK, ALPHA = 4, 2.0


def save_adapted(folder: Path) -> PreTrainedModel:
    """jina-embeddings-v3 as published: LoRA parametrizations of every matrix, transposed for embeddings."""
    reference = save_tiny(folder, "JinaEmbeddingsV3Model")
    lora = {"lora_adaptations": TASKS, "lora_rank": RANK, "lora_alpha": ALPHA, "lora_dropout_p": 0.0}
    lay_out(folder, reference, "published", **lora)
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith("bias") or "ln" in name or "norm" in name:
            tensors[f"roberta.{name}"] = tensor
            continue
        place = f"roberta.{name.removesuffix('weight')}parametrizations.weight"
        rows, columns = tensor.shape
        shapes = ((rows, RANK), (RANK, columns)) if "embeddings" in name else ((RANK, columns), (rows, RANK))
        tensors[f"{place}.original"] = tensor
        for letter, shape in zip("AB", shapes, strict=True):
            tensors[f"{place}.0.lora_{letter}"] = torch.randn(len(TASKS), *shape, generator=generator) * 0.3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return reference
