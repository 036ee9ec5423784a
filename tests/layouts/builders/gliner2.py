"""GLiNER2: config.json about the heads, the encoder's in a folder of its own, one file of weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.layouts.registry import builder
from tests.layouts.tokenizers import write_tokenizer
from tests.tiny import SIZES, randomize

TOKENS = ["[SEP_STRUCT]", "[SEP_TEXT]", "[P]", "[C]", "[E]", "[R]", "[L]", "[EXAMPLE]", "[OUTPUT]", "[DESCRIPTION]"]
SETTINGS: dict[str, Any] = {
    "counting_layer": "count_lstm",
    "max_width": 8,
    "model_name": "microsoft/deberta-v3-base",
    "model_type": "extractor",
    "token_pooling": "first",
    "transformers_version": "4.52.4",
}


def make_mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for pair in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def make_span_mlp(input_size: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(input_size, 4 * size), nn.ReLU(), nn.Dropout(), nn.Linear(4 * size, size))


def make_counting_layer(name: str, size: int) -> nn.ModuleDict:
    layers: dict[str, nn.Module] = {"pos_embedding": nn.Embedding(20, size), "gru": nn.GRU(size, size)}
    if name == "count_lstm":
        layers["projector"] = make_mlp(2 * size, 4 * size, size)
    elif name == "count_lstm_v2":
        mixer = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2)
        inner = {"in_projector": nn.Linear(size, 128), "transformer": mixer}
        layers["transformer"] = nn.ModuleDict({**inner, "out_projector": make_mlp(128 + size, size, size, size)})
    else:
        layers["router"] = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, 4), nn.Softmax(dim=-1))
    counting = nn.ModuleDict(layers)
    if name == "count_lstm_moe":
        for weight, shape in {"w1": (size, 2 * size), "b1": (2 * size,), "w2": (2 * size, size), "b2": (size,)}.items():
            counting.register_parameter(weight, nn.Parameter(torch.empty(4, *shape)))
    return counting


def make_heads(size: int, counting_layer: str) -> nn.ModuleDict:
    """Return the layers above the encoder, with the names that they have in the checkpoint."""
    span = {"project_start": make_span_mlp(size, size), "project_end": make_span_mlp(size, size)}
    span["out_project"] = make_span_mlp(2 * size, size)
    return nn.ModuleDict(
        {
            "span_rep": nn.ModuleDict({"span_rep_layer": nn.ModuleDict(span)}),
            "classifier": make_mlp(size, 2 * size, 1),
            "count_pred": make_mlp(size, 2 * size, 20),
            "count_embed": make_counting_layer(counting_layer, size),
        }
    )


def save_encoder(folder: Path) -> PreTrainedModel:
    """Save the tokenizer and the encoder's config; return the encoder."""
    vocab_size = len(write_tokenizer(folder, "deberta-v3", {}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    tokenizer.save_pretrained(folder)
    sizes = SIZES["deberta-v2"] | {"type_vocab_size": 0, "position_biased_input": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Transformers' DeBERTa is scripted when it is imported
        model_class = transformers.DebertaV2Model
    config = transformers.DebertaV2Config(**sizes | {"vocab_size": vocab_size + len(TOKENS)})
    encoder = model_class(config).eval()
    randomize(encoder)
    (folder / "encoder_config").mkdir()
    (folder / "encoder_config" / "config.json").write_text(json.dumps(config.to_dict()))
    return encoder


def save_weights(folder: Path, encoder: PreTrainedModel, heads: Mapping[str, Tensor]) -> None:
    weights = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    save_file(weights | dict(heads), folder / "model.safetensors")


def save_gliner2(folder: Path, counting_layer: str = "count_lstm", **settings: Any) -> tuple[PreTrainedModel, Any]:
    """Save the model; return encoder and heads."""
    encoder = save_encoder(folder)
    heads = make_heads(encoder.config.hidden_size, counting_layer).eval()
    # values with which there are entities, and few scores are equal
    seed, std = {"count_lstm": (4, 0.14)}.get(counting_layer, (2, 0.2))
    randomize(heads, seed=seed, std=std)
    heads["count_pred"][2].bias.data[0] = -9.0  # there are entities
    (folder / "config.json").write_text(json.dumps(SETTINGS | {"counting_layer": counting_layer} | settings))
    save_weights(folder, encoder, heads.state_dict())
    return encoder, heads


@builder
def gliner2_base_v1(folder: Path) -> None:
    save_gliner2(folder)


@builder
def gliner2_multi_v1(folder: Path) -> None:
    save_gliner2(folder, "count_lstm_v2")


@builder
def gliner2_large_v1(folder: Path) -> None:
    save_gliner2(folder, "count_lstm_moe")
