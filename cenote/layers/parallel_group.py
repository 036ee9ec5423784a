"""ParallelGroup: sums and exchanges tensors among the ranks of a tensor-parallel model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # documented, but not in its __all__

# of the first connection, when all ranks are known to run
CONNECT_TIMEOUT = timedelta(minutes=2)
# of one collective operation; hangs are noticed earlier, by the step timeout of the engine
TIMEOUT = timedelta(hours=24)


class ParallelGroup:
    """One rank of several processes; collective operations need `connect`, which waits for all of them."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._backend: Any = None

    def connect(self, store_file: str, device: torch.device, *, use_nccl: bool) -> None:
        """Meet the other ranks in a private file: NCCL between distinct GPUs, else gloo over the loopback device.

        When it returns, all ranks are connected and the file is not needed any more.
        """
        store = FileStore(store_file, self.num_ranks)
        store.set_timeout(CONNECT_TIMEOUT)
        if use_nccl:
            with torch.cuda.device(device):
                nccl_options = dist.ProcessGroupNCCL.Options()
                nccl_options._timeout = TIMEOUT
                self._backend = dist.ProcessGroupNCCL(store, self.rank, self.num_ranks, nccl_options)
                self.all_reduce(torch.zeros(1, device=device))
                torch.cuda.synchronize(device)
            return
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stubs
        options._timeout = CONNECT_TIMEOUT
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self._backend = dist.ProcessGroupGloo(store, self.rank, self.num_ranks, options)
        self.all_reduce(torch.zeros(1))
        self._backend._set_default_timeout(TIMEOUT)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        self._backend.allreduce([tensor]).wait()
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrite the tensor with that of rank 0."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._backend.broadcast([tensor], options).wait()
        return tensor

    def gather_columns(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """Return the parts of all ranks, [rows, width of the rank] each, side by side; on every rank."""
        # collective operations need equal sizes
        padded = part.new_zeros(len(part), max(widths))
        padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in range(self.num_ranks)]
        self._backend.allgather([parts], [padded]).wait()
        return torch.cat([other[:, :width] for other, width in zip(parts, widths, strict=True)], dim=1)

    def abort(self) -> None:
        """End operations that wait for a rank that has exited."""
        if self._backend is not None and hasattr(self._backend, "abort"):
            self._backend.abort()
