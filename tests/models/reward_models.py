"""Reward models with heads of their own, and the reference rewards of Transformers with the same heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.tiny import SEQUENCES, change_config, compute_hidden_states, randomize, save_tiny

Tensors: TypeAlias = "dict[str, Tensor]"


def rewrite(folder: Path, make: Callable[[Tensors], Tensors], *, drop: tuple[str, ...] = (), **values: Any) -> None:
    """Convert a checkpoint saved by Transformers to another layout."""
    file = folder / "model.safetensors"
    made = make(load_file(file))
    save_file({name: tensor.clone() for name, tensor in made.items()}, file, metadata={"format": "pt"})
    change_config(folder, drop=drop, **values)


def renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors


def as_internlm2(tensors: Tensors) -> Tensors:
    """Interleave 2 KV heads with 2 query heads each, of size 8: query, query, key, value, ..."""
    names = {
        "embed_tokens": "tok_embeddings",
        "self_attn.o_proj": "attention.wo",
        "input_layernorm": "attention_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "post_attention_layernorm": "ffn_norm",
        "lm_head": "output",
    }
    made = renamed(tensors, names)
    for name in [name for name in made if ".q_proj." in name]:
        query, key, value = (made.pop(name.replace("q_proj", f"{x}_proj")).split(8) for x in "qkv")
        rows = [*query[:2], key[0], value[0], *query[2:], key[1], value[1]]
        made[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat(rows)
    return made


class Head(nn.Sequential):
    """Random layers above a backbone, and their weight names in a checkpoint."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        randomize(self, seed=1)
        self.eval().requires_grad_(False)

    def tensors(self, prefix: str) -> Tensors:
        return {f"{prefix}.{name}": tensor for name, tensor in self.state_dict().items()}

    def over(self, reference: PreTrainedModel) -> list[Tensor]:
        with torch.inference_mode():
            return [self(rows) for rows in compute_hidden_states(reference)]


GOOD, BAD, STEP = 12, 31, 9


def at_steps(rows: Sequence[Tensor], tag: int = STEP) -> list[Tensor]:
    return [row[torch.tensor(ids) == tag] for row, ids in zip(rows, SEQUENCES, strict=True)]


def outcome(folder: Path) -> list[Tensor]:
    """Save an outcome reward model as Qwen2.5-Math-RM."""
    reference = save_tiny(folder, "Qwen2ForCausalLM")
    score = Head(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    rewrite(folder, lambda tensors: tensors | score.tensors("score"), architectures=["Qwen2ForRewardModel"])
    return score.over(reference)


def process(folder: Path, **changes: Any) -> list[Tensor]:
    reference = save_tiny(folder, "Qwen2ForCausalLM", **changes)
    score = Head(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    rewrite(folder, lambda tensors: tensors | score.tensors("score"), architectures=["Qwen2ForProcessRewardModel"])
    return score.over(reference)


def internlm2(folder: Path) -> list[Tensor]:
    reference = save_tiny(folder, "LlamaForCausalLM")
    head = Head(nn.Linear(32, 1, bias=False))
    weight = {"v_head.weight": head[0].weight.detach()}
    rewrite(folder, lambda tensors: as_internlm2(tensors) | weight, architectures=["InternLM2ForRewardModel"])
    return head.over(reference)
