"""Models of known shapes with random weights, written to a folder as checkpoints are: speed asks for no training."""

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
class Shape:
    name: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    kv_heads: int | None = None
    head_dim: int | None = None
    decoder: bool = False

    @property
    def widths(self) -> tuple[int, int]:
        """Of all query heads, and of all key heads."""
        size = self.head_dim or self.hidden // self.heads
        return self.heads * size, (self.kv_heads or self.heads) * size

    @property
    def flop_per_token(self) -> int:
        """In matrix products with weights, which is where nearly all of it is."""
        queries, keys = self.widths
        attention = self.hidden * (queries + 2 * keys) + queries * self.hidden
        halves = 3 if self.decoder else 2
        return 2 * self.layers * (attention + halves * self.hidden * self.intermediate)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("minilm-l6", 6, 384, 12, 1536),
        Shape("bert-base", 12, 768, 12, 3072),
        Shape("bert-large", 24, 1024, 16, 4096),
        Shape("qwen3-0.6b", 28, 1024, 16, 3072, kv_heads=8, head_dim=128, decoder=True),
    )
}


def write_checkpoint(folder: Path, shape: Shape, device: str = "cpu") -> None:
    """Weights are drawn on `device`, which for a large shape had better be a fast one."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*size: int, around: float = 0.0) -> Tensor:
        values = torch.randn(*size, generator=generator, device=device) * 0.02 + around
        return values.to(torch.bfloat16).cpu()

    tensors = dict(_qwen(shape, drawn) if shape.decoder else _bert(shape, drawn))
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def _config(shape: Shape) -> dict[str, object]:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 8192 if shape.decoder else 512,
    }
    if not shape.decoder:
        return {**common, "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu"}
    own = {"model_type": "qwen3", "architectures": ["Qwen3Model"], "hidden_act": "silu", "rms_norm_eps": 1e-6}
    return {**common, **own, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}


def _bert(shape: Shape, drawn: Callable[..., Tensor]) -> Iterator[tuple[str, Tensor]]:
    def norm(name: str) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", drawn(shape.hidden, around=1.0)
        yield f"{name}.bias", drawn(shape.hidden)

    def linear(name: str, outputs: int, inputs: int) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}.weight", drawn(outputs, inputs)
        yield f"{name}.bias", drawn(outputs)

    for table, rows in (("word", VOCABULARY), ("position", 512), ("token_type", 2)):
        yield f"embeddings.{table}_embeddings.weight", drawn(rows, shape.hidden)
    yield from norm("embeddings.LayerNorm")
    for number in range(shape.layers):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield from linear(f"{layer}.attention.self.{part}", shape.hidden, shape.hidden)
        yield from linear(f"{layer}.attention.output.dense", shape.hidden, shape.hidden)
        yield from norm(f"{layer}.attention.output.LayerNorm")
        yield from linear(f"{layer}.intermediate.dense", shape.intermediate, shape.hidden)
        yield from linear(f"{layer}.output.dense", shape.hidden, shape.intermediate)
        yield from norm(f"{layer}.output.LayerNorm")


def _qwen(shape: Shape, drawn: Callable[..., Tensor]) -> Iterator[tuple[str, Tensor]]:
    queries, keys = shape.widths
    yield "embed_tokens.weight", drawn(VOCABULARY, shape.hidden)
    for number in range(shape.layers):
        layer = f"layers.{number}"
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{part}_proj.weight", drawn(width, shape.hidden)
        yield f"{layer}.self_attn.o_proj.weight", drawn(shape.hidden, queries)
        for part in ("q", "k"):
            yield f"{layer}.self_attn.{part}_norm.weight", drawn(shape.head_dim or 0, around=1.0)
        for part in ("gate", "up"):
            yield f"{layer}.mlp.{part}_proj.weight", drawn(shape.intermediate, shape.hidden)
        yield f"{layer}.mlp.down_proj.weight", drawn(shape.hidden, shape.intermediate)
        for part in ("input", "post_attention"):
            yield f"{layer}.{part}_layernorm.weight", drawn(shape.hidden, around=1.0)
    yield "norm.weight", drawn(shape.hidden, around=1.0)
