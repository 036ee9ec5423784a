"""Copy results to pinned host memory on a side stream, overlapping the next batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# larger results are copied on the side stream; smaller ones on the current stream, whose order protects their memory
SIDE_STREAM_MIN_BYTES = 4 * 2**20


class DeviceToHostCopier:
    """Copies tensors from the current device to pinned host memory."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        """Start the copies; return them and the event that marks their completion."""
        if not uses_side_stream(sum(tensor.nbytes for tensor in tensors)):
            return _copy_to_pinned(tensors)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            copies = _copy_to_pinned(tensors)
        for tensor in tensors:
            tensor.record_stream(self.stream)  # the allocator must not reuse its memory before it is copied
        return copies


def uses_side_stream(num_bytes: int) -> bool:
    return num_bytes > SIDE_STREAM_MIN_BYTES


def _copy_to_pinned(tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return copies, done
