"""Answers leave the device while it computes on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# larger answers leave on a stream of their own; smaller ones may lie in memory that the next batch reuses
SIDE_STREAM_MIN_BYTES = 4 * 2**20


class DeviceToHostCopier:
    """Copies tensors from the current device to page-locked memory of the host."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        """The copies, and the event after which they are there."""
        if sum(tensor.nbytes for tensor in tensors) <= SIDE_STREAM_MIN_BYTES:
            return _copy_to_pinned(tensors)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            found = _copy_to_pinned(tensors)
        for tensor in tensors:
            tensor.record_stream(self.stream)  # its memory is not given away before it is read
        return found


def _copy_to_pinned(tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return copies, done
