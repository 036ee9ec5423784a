"""Checkpoints of common model shapes with random weights, for measurements of speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

VOCABULARY = 30522


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    is_decoder: bool = False

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


SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("minilm-l6", 6, 384, 12, 1536),
        ModelShape("bert-base", 12, 768, 12, 3072),
        ModelShape("bert-large", 24, 1024, 16, 4096),
        ModelShape("qwen3-0.6b", 28, 1024, 16, 3072, num_kv_heads=8, head_dim=128, is_decoder=True),
    )
}


def write_checkpoint(folder: Path, shape: ModelShape, device: str = "cpu") -> None:
    """Write config, tokenizer and random weights to `folder`; weights are generated on `device`."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(0)

    def draw(*size: int, around: float = 0.0) -> Tensor:
        values = torch.randn(*size, generator=generator, device=device) * 0.02 + around
        return values.to(torch.bfloat16).cpu()

    tensors = dict(_qwen_tensors(shape, draw) if shape.is_decoder else _bert_tensors(shape, draw))
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_make_config(shape)))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def _make_config(shape: ModelShape) -> dict[str, object]:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 8192 if shape.is_decoder else 512,
    }
    if not shape.is_decoder:
        return {**common, "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu"}
    own = {"model_type": "qwen3", "architectures": ["Qwen3Model"], "hidden_act": "silu", "rms_norm_eps": 1e-6}
    return {**common, **own, "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim}


def _bert_tensors(shape: ModelShape, draw: Callable[..., Tensor]) -> Iterator[tuple[str, Tensor]]:
    def norm(name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", draw(shape.hidden_size, around=1.0)
        yield f"{name}.bias", draw(shape.hidden_size)

    def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", draw(outputs, inputs)
        yield f"{name}.bias", draw(outputs)

    for table, rows in (("word", VOCABULARY), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{table}_embeddings.weight", draw(rows, shape.hidden_size)
    yield from norm("embeddings.LayerNorm")
    for number in range(shape.num_layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}", shape.hidden_size, shape.hidden_size)
        yield from linear(f"{layer}.attention.output.dense", shape.hidden_size, shape.hidden_size)
        yield from norm(f"{layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.intermediate.dense", shape.intermediate_size, shape.hidden_size)
        yield from linear(f"{layer}.output.dense", shape.hidden_size, shape.intermediate_size)
        yield from norm(f"{layer}.output.LayerNorm")


def _qwen_tensors(shape: ModelShape, draw: Callable[..., Tensor]) -> Iterator[tuple[str, Tensor]]:
    queries, keys = shape.attention_widths
    yield "embed_tokens.weight", draw(VOCABULARY, shape.hidden_size)
    for number in range(shape.num_layers):
        layer = f"layers.{number}"
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{part}_proj.weight", draw(width, shape.hidden_size)
        yield f"{layer}.self_attn.o_proj.weight", draw(shape.hidden_size, queries)
        for part in ("q", "k"):
            yield f"{layer}.self_attn.{part}_norm.weight", draw(shape.head_dim or 0, around=1.0)
        for part in ("gate", "up"):
            yield f"{layer}.mlp.{part}_proj.weight", draw(shape.intermediate_size, shape.hidden_size)
        yield f"{layer}.mlp.down_proj.weight", draw(shape.hidden_size, shape.intermediate_size)
        for part in ("input", "post_attention"):
            yield f"{layer}.{part}_layernorm.weight", draw(shape.hidden_size, around=1.0)
    yield "norm.weight", draw(shape.hidden_size, around=1.0)
