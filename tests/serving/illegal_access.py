"""A kernel that writes outside of its memory: afterwards the CUDA context of the process is lost."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _write(pointer, offset):  # type: ignore[no-untyped-def]  # Triton evaluates annotations
    tl.store(pointer + offset, 1.0)


def write_out_of_bounds(device: torch.device) -> None:
    _write[(1,)](torch.zeros(1, device=device), 1 << 44)
    torch.cuda.synchronize(device)
