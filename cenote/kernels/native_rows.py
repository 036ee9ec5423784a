"""Native row-wise kernels on a CPU: residual add with norm, gated activations, QK norm with rotary embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from cenote.kernels import native_library
from cenote.kernels.cpu.library import ACTIVATION_CODES

VECTOR_SIZE = 16  # elements per vector instruction


def supports(*rows: Tensor | None) -> bool:
    """Return whether native code is available and all tensors are contiguous bfloat16 with a width of whole vectors."""
    return native_library.is_available() and all(
        x is None
        or (
            x.device.type == "cpu"
            and x.dtype == torch.bfloat16
            and x.is_contiguous()
            and x.shape[-1] % VECTOR_SIZE == 0
        )
        for x in rows
    )


def add_norm(
    residual: Tensor,
    branch: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    rms: bool,
    offset: float,
    return_residual: bool,
) -> tuple[Tensor, Tensor]:
    """Return residual + branch and its norm, which is computed from the unrounded sum."""
    total = torch.empty_like(residual) if return_residual and branch is not None else None
    out = torch.empty_like(residual)
    width = residual.shape[-1]
    failed = native_library.load_library().cenote_add_norm(
        *(None if tensor is None else tensor.data_ptr() for tensor in (residual, branch, weight, bias)),
        eps,
        offset,
        rms,
        residual.numel() // width,
        width,
        None if total is None else total.data_ptr(),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"cannot allocate scratch memory for a norm over an input of shape {tuple(residual.shape)}")
    return residual if total is None else total, out


def act_and_mul(gate_and_up: Tensor, activation: str) -> Tensor:
    width = gate_and_up.shape[-1] // 2
    out = torch.empty((*gate_and_up.shape[:-1], width), dtype=torch.bfloat16)
    native_library.load_library().cenote_act_and_mul(
        gate_and_up.data_ptr(),
        out.numel() // width,
        width,
        ACTIVATION_CODES.index(activation),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def supports_rope(heads: Tensor) -> bool:
    return heads.device.type == "cpu" and heads.dtype == torch.bfloat16 and native_library.is_available()


def qk_norm_rope_(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_queries: int,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    cos, sin = cos.contiguous(), sin.contiguous()
    native_library.load_library().cenote_rope(
        heads.data_ptr(),
        heads.stride(0),
        *heads.shape[:2],
        num_queries,
        heads.shape[2],
        cos.shape[-1],
        *(None if tensor is None else tensor.data_ptr() for tensor in (cos, sin, query_weight, key_weight)),
        eps,
        torch.get_num_threads(),
    )
