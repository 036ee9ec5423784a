"""Tiny jina-bert checkpoints, and their arithmetic in plain torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from tests.tiny import ENCODER, save_tokenizer

JINA = ENCODER | {
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "hidden_size": 36,
    "num_attention_heads": 6,  # not a power of two: the last two ALiBi slopes are interpolated
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
    "hidden_act": "gelu",
}

CODE = {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}}


def save_jina(folder: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = JINA | changes
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    norms, linears = ["embeddings.LayerNorm"], {}
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        norms.append(f"{name}.attention.output.LayerNorm")
        linears |= {f"{name}.attention.self.{x}": (hidden, hidden) for x in ("query", "key", "value")}
        linears |= {f"{name}.attention.output.dense": (hidden, hidden)}
        if "auto_map" in config:
            norms += [f"{name}.attention.self.layer_norm_{x}" for x in "qk"] + [
                f"{name}.layer_norm_{n}" for n in (1, 2)
            ]
            linears |= {f"{name}.mlp.up_gated_layer": (2 * inner, hidden), f"{name}.mlp.down_layer": (hidden, inner)}
        elif config["feed_forward_type"] == "original":
            norms.append(f"{name}.output.LayerNorm")
            linears |= {f"{name}.intermediate.dense": (inner, hidden), f"{name}.output.dense": (hidden, inner)}
        else:
            norms.append(f"{name}.mlp.layernorm")
            linears |= {f"{name}.mlp.gated_layers": (2 * inner, hidden), f"{name}.mlp.wo": (hidden, inner)}
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    tensors = {f"embeddings.{x}_embeddings.weight": random(n, hidden) for x, n in (("word", 160), ("token_type", 2))}
    if config["position_embedding_type"] == "absolute":
        tensors["embeddings.position_embeddings.weight"] = random(config["max_position_embeddings"], hidden)
    for name in norms:
        tensors |= {f"{name}.weight": 1 + random(hidden), f"{name}.bias": random(hidden)}
    for name, shape in linears.items():
        tensors[f"{name}.weight"] = random(*shape)
        if "gated" not in name:
            tensors[f"{name}.bias"] = random(shape[0])
    tensors |= {"pooler.dense.weight": random(hidden, hidden), "pooler.dense.bias": random(hidden)}
    if "Classification" in config["architectures"][0]:
        tensors |= {"classifier.weight": random(2, hidden), "classifier.bias": random(2)}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    save_tokenizer(folder)
    return config, tensors


def plain_jina(config: dict[str, Any], tensors: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Run one sequence through an unbatched JinaBERT: [tokens, hidden]."""
    heads, size = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-12)

    def split(x: Tensor) -> Tensor:
        return x.view(len(ids), heads, size).transpose(0, 1)

    def slopes(count: int) -> list[float]:
        if math.log2(count).is_integer():
            start = 2.0 ** -(2.0 ** -(math.log2(count) - 3))
            return [start ** (n + 1) for n in range(count)]
        power = 2 ** int(math.log2(count))
        return slopes(power) + slopes(2 * power)[0::2][: count - power]

    place = torch.arange(len(ids))
    alibi = -(place - place[:, None]).abs() * torch.tensor(slopes(heads))[:, None, None]
    act = {"geglu": F.gelu, "reglu": F.relu, "original": F.gelu}[config["feed_forward_type"]]
    embedding = "embeddings.{}_embeddings.weight"
    x = tensors[embedding.format("word")][ids] + tensors[embedding.format("token_type")][0]
    if config["position_embedding_type"] == "absolute":
        x, alibi = x + tensors[embedding.format("position")][place], torch.zeros(())
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        query, key, value = (linear(x, f"{name}.attention.self.{kind}") for kind in ("query", "key", "value"))
        if "auto_map" in config:
            query, key = (norm(part, f"{name}.attention.self.layer_norm_{n}") for part, n in ((query, "q"), (key, "k")))
        weights = (split(query) @ split(key).mT / math.sqrt(size) + alibi).softmax(-1)
        mixed = linear((weights @ split(value)).transpose(0, 1).flatten(1), f"{name}.attention.output.dense")
        after = norm(mixed + x, f"{name}.attention.output.LayerNorm")
        if "auto_map" in config:
            after = norm(x + after, f"{name}.layer_norm_1")
            up, gate = linear(after, f"{name}.mlp.up_gated_layer").chunk(2, dim=-1)
            x = norm(after + linear(up * act(gate), f"{name}.mlp.down_layer"), f"{name}.layer_norm_2")
        elif config["feed_forward_type"] == "original":
            inner = act(linear(after, f"{name}.intermediate.dense"))
            x = norm(after + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        else:
            gate, up = linear(after, f"{name}.mlp.gated_layers").chunk(2, dim=-1)
            x = norm(after + linear(act(gate) * up, f"{name}.mlp.wo"), f"{name}.mlp.layernorm")
    return x
