"""Choose the default number of tokens per batch: enough to use the device fully and within its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cenote.config.device import Device
from cenote.layers.spec import BackboneSpec

if TYPE_CHECKING:
    from torch import nn

# on a CPU: enough for full throughput, few enough for a low latency of the first result
CPU_TOKEN_BUDGET = 4096
# (maximum hidden size, tokens): wide models reach full GPU throughput with fewer tokens
GPU_BUDGET_BY_HIDDEN_SIZE = ((1024, 131072), (2048, 65536))
WIDE_MODEL_TOKEN_BUDGET = 32768
MIN_TOKEN_BUDGET = 1024
# of the free memory, for the activations of a batch; the rest is for results, CUDA graphs and libraries
MEMORY_FRACTION = 0.5


def compute_token_budget(backbone: nn.Module, device: Device) -> int:
    if device.type != "cuda":
        return CPU_TOKEN_BUDGET
    import torch

    free, _ = torch.cuda.mem_get_info(str(device))
    backbone = getattr(backbone, "backbone", backbone)  # unwrap BackboneWithLoRA
    parameter = next(backbone.parameters(), None)
    element_size = 4 if parameter is None else parameter.element_size()
    extra_bytes = max((getattr(module, "bytes_per_token", 0) for module in backbone.modules()), default=0)
    return max_tokens_in_memory(getattr(backbone, "spec", None), element_size, free, extra_bytes)


def max_tokens_in_memory(
    spec: BackboneSpec | None, element_size: int, free_bytes: int, extra_bytes_per_token: int = 0
) -> int:
    """Return the tokens per batch that fit the free memory, at most as many as increase throughput.

    `extra_bytes_per_token`: memory of special layers, such as gated delta networks.
    """
    if spec is None:  # the Transformers backend, which pads
        return WIDE_MODEL_TOKEN_BUDGET
    max_useful = next(
        (tokens for hidden, tokens in GPU_BUDGET_BY_HIDDEN_SIZE if spec.hidden_size <= hidden), WIDE_MODEL_TOKEN_BUDGET
    )
    bytes_per_token = estimate_bytes_per_token(spec, element_size) + extra_bytes_per_token
    max_fitting = int(free_bytes * MEMORY_FRACTION) // bytes_per_token
    return max(MIN_TOKEN_BUDGET, min(max_useful, max_fitting) // MIN_TOKEN_BUDGET * MIN_TOKEN_BUDGET)


def estimate_bytes_per_token(spec: BackboneSpec, element_size: int) -> int:
    """Estimate the peak memory of a layer per token: hidden states, residual and norm, attention or MLP activations."""
    attention = (2 * spec.num_heads + 2 * spec.num_key_value_heads) * spec.head_size
    mlp = (3 if spec.is_gated_mlp else 2) * spec.intermediate_size
    states = 4 * spec.hidden_size
    pooled = 4 * spec.hidden_size  # bytes: the last states in float32
    return element_size * (states + max(attention, mlp)) + pooled
