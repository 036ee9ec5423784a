"""How many tokens a batch holds when nobody says: what fills the device and surely fits its memory."""

from __future__ import annotations

import torch
from torch import nn

from cenote.layers.spec import BackboneSpec

# on a CPU: enough to keep it busy without making the first answer wait
CPU_TOKEN_BUDGET = 4096
# matrix products of wide models fill a GPU with fewer tokens: by hidden size, the most that still gains
GPU_BUDGET_BY_HIDDEN_SIZE = ((1024, 131072), (2048, 65536))
WIDE_MODEL_TOKEN_BUDGET = 32768
MIN_TOKEN_BUDGET = 1024
# of the free memory for what a batch needs while it runs; the rest is for answers, recordings and the libraries
MEMORY_FRACTION = 0.5


def compute_token_budget(backbone: nn.Module, device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_TOKEN_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    backbone = getattr(backbone, "backbone", backbone)  # within what looks up adapters
    parameter = next(backbone.parameters(), None)
    size = 4 if parameter is None else parameter.element_size()
    odd = max((getattr(part, "bytes_per_token", 0) for part in backbone.modules()), default=0)
    return max_tokens_in_memory(getattr(backbone, "spec", None), size, free, odd)


def max_tokens_in_memory(
    spec: BackboneSpec | None, element_size: int, free_bytes: int, extra_bytes_per_token: int = 0
) -> int:
    """The most tokens that gain anything and fit in so much memory; `odd_bytes`: what an odd layer holds for each."""
    if spec is None:  # not one of our own, which pads
        return WIDE_MODEL_TOKEN_BUDGET
    wanted = next(
        (tokens for hidden, tokens in GPU_BUDGET_BY_HIDDEN_SIZE if spec.hidden_size <= hidden), WIDE_MODEL_TOKEN_BUDGET
    )
    fit = int(free_bytes * MEMORY_FRACTION) // (estimate_bytes_per_token(spec, element_size) + extra_bytes_per_token)
    return max(MIN_TOKEN_BUDGET, min(wanted, fit) // MIN_TOKEN_BUDGET * MIN_TOKEN_BUDGET)


def estimate_bytes_per_token(spec: BackboneSpec, element_size: int) -> int:
    """What the widest moment of a layer holds: states, their sum and norm, and what is made of them."""
    heads = (2 * spec.num_heads + 2 * spec.num_key_value_heads) * spec.head_size
    halves = (3 if spec.is_gated_mlp else 2) * spec.intermediate_size
    states = 4 * spec.hidden_size
    return element_size * (states + max(heads, halves)) + 4 * spec.hidden_size  # and once in float32, to be pooled
