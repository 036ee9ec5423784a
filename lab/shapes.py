"""Checkpoints of common model shapes with random weights, for measurements of speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = 30522
WEIGHT_STD = 0.02

Tensors = Iterator[tuple[str, tuple[int, ...]]]  # names and shapes of a checkpoint


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    architecture: str = "BertModel"
    vocab_size: int = VOCABULARY

    @property
    def is_decoder(self) -> bool:
        return self.architecture != "BertModel"

    @property
    def attention_widths(self) -> tuple[int, int]:
        """Return the total width of the query heads and of the key heads."""
        size = self.head_dim or self.hidden_size // self.num_heads
        return self.num_heads * size, (self.num_kv_heads or self.num_heads) * size

    @property
    def flop_per_token(self) -> int:
        """Return the FLOP of matrix products with weights, which dominate."""
        queries, keys = self.attention_widths
        attention = self.hidden_size * (queries + 2 * keys) + queries * self.hidden_size
        num_projections = 3 if self.is_decoder else 2
        return 2 * self.num_layers * (attention + num_projections * self.hidden_size * self.intermediate_size)

    def tensors(self) -> Tensors:
        return _qwen_tensors(self) if self.is_decoder else _bert_tensors(self)


SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("minilm-l6", 6, 384, 12, 1536),
        ModelShape("bert-base", 12, 768, 12, 3072),
        ModelShape("bert-large", 24, 1024, 16, 4096),
        ModelShape("qwen3-0.6b", 28, 1024, 16, 3072, num_kv_heads=8, head_dim=128, architecture="Qwen3Model"),
    )
}


def write_checkpoint(folder: Path, shape: ModelShape, device: str = "cpu") -> None:
    """Write config, tokenizer and random weights to `folder`; weights are generated on `device`."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, size in shape.tensors():
        values = torch.randn(*size, generator=generator, device=device) * WEIGHT_STD + is_norm_weight(name)
        tensors[name] = values.to(torch.bfloat16).cpu()
    write_settings(folder, shape)
    save_file(tensors, folder / "model.safetensors")


def is_norm_weight(name: str) -> bool:
    """Whether the values of a tensor are near one, not zero."""
    return "norm" in name.lower() and name.endswith(".weight")


def write_settings(folder: Path, shape: ModelShape) -> None:
    """Write config.json and a tokenizer, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_make_config(shape)))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def _make_config(shape: ModelShape) -> dict[str, object]:
    common = {
        "architectures": [shape.architecture],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 8192 if shape.is_decoder else 512,
    }
    if not shape.is_decoder:
        return {**common, "model_type": "bert", "hidden_act": "gelu"}
    own = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "num_key_value_heads": shape.num_kv_heads}
    if shape.architecture == "Qwen3Model":
        return {**common, **own, "model_type": "qwen3", "head_dim": shape.head_dim}
    return {**common, **own, "model_type": "qwen2", "rope_theta": 1e6}


def _bert_tensors(shape: ModelShape) -> Tensors:
    hidden, inner = shape.hidden_size, shape.intermediate_size

    def linear(name: str, outputs: int, *inputs: int) -> Tensors:
        yield f"{name}.weight", (outputs, *inputs)
        yield f"{name}.bias", (outputs,)

    for table, rows in (("word", shape.vocab_size), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{table}_embeddings.weight", (rows, hidden)
    yield from linear("embeddings.LayerNorm", hidden)
    for number in range(shape.num_layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}", hidden, hidden)
        yield from linear(f"{layer}.attention.output.dense", hidden, hidden)
        yield from linear(f"{layer}.attention.output.LayerNorm", hidden)
        yield from linear(f"{layer}.intermediate.dense", inner, hidden)
        yield from linear(f"{layer}.output.dense", hidden, inner)
        yield from linear(f"{layer}.output.LayerNorm", hidden)


def _qwen_tensors(shape: ModelShape) -> Tensors:
    """Yield the tensors of Qwen3, which normalizes queries and keys, or of a reward model of Qwen2, with biases."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.attention_widths
    is_reward = shape.architecture == "Qwen2ForRewardModel"
    prefix = "model." if is_reward else ""
    yield f"{prefix}embed_tokens.weight", (shape.vocab_size, hidden)
    for number in range(shape.num_layers):
        layer = f"{prefix}layers.{number}"
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{part}_proj.weight", (width, hidden)
            if is_reward:
                yield f"{layer}.self_attn.{part}_proj.bias", (width,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        for part in () if is_reward else ("q", "k"):
            yield f"{layer}.self_attn.{part}_norm.weight", (shape.head_dim or 0,)
        for part in ("gate", "up"):
            yield f"{layer}.mlp.{part}_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        for part in ("input", "post_attention"):
            yield f"{layer}.{part}_layernorm.weight", (hidden,)
    yield f"{prefix}norm.weight", (hidden,)
    for part, rows in (("0", hidden), ("2", 1)) if is_reward else ():
        yield f"score.{part}.weight", (rows, hidden)
        yield f"score.{part}.bias", (rows,)
