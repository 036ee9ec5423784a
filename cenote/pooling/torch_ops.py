"""TorchOps: the functions of pooling in torch, on the device of their tensors; on a CPU partly in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.cpu.pooling import Method, normalize_rows, pool_rows
from cenote.kernels.gpu.triton_support import can_use_triton
from cenote.layers.torch_dtypes import to_tensor
from cenote.packed_batch import PackedBatch
from cenote.pooling.ops import LAYER_NORM_EPS, MIN_NORM
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

DTYPES: dict[Dtype | Literal["bool"], torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bool": torch.bool,
}


class TorchOps:
    """Functions of tensors; see `ArrayOps`."""

    def from_host(self, values: Array, like: Tensor) -> Tensor:
        return to_tensor(values).to(like.device)

    def to_host(self, x: Tensor) -> Array:
        array: Array = x.cpu().numpy()
        return array

    def to_dtype(self, x: Tensor, dtype: Dtype) -> Tensor:
        wanted = DTYPES[dtype]
        # a call of `to` without effect takes longer on a CPU than the arithmetic of a short text
        return x if x.dtype is wanted else x.to(wanted)

    def copy(self, x: Tensor) -> Tensor:
        return x.clone()

    def zeros(self, shape: tuple[int, ...], dtype: Dtype | Literal["bool"], like: Tensor) -> Tensor:
        return torch.zeros(shape, dtype=DTYPES[dtype], device=like.device)

    def concat(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.cat(list(parts), dim=axis)

    def stack(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        return torch.stack(list(parts), dim=axis)

    def split(self, x: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
        return torch.split(x, list(lengths))

    def where(self, condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
        chosen: Tensor = torch.where(condition, x, y)
        return chosen

    def amax(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(dim=axis)

    def clamp_min(self, x: Tensor, minimum: float) -> Tensor:
        return x.clamp(min=minimum)

    def isin(self, x: Tensor, values: Sequence[int], *, invert: bool = False) -> Tensor:
        return torch.isin(x, torch.tensor(values, device=x.device), invert=invert)

    def nonzero(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.nonzero(as_tuple=True)

    def bincount(self, x: Tensor, size: int) -> list[int]:
        counts: list[int] = torch.bincount(x, minlength=size).tolist()
        return counts

    def max_by_key(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        unique, inverse = torch.unique(keys, return_inverse=True)
        return unique, values.new_zeros(len(unique)).scatter_reduce_(0, inverse, values, "amax")

    def scatter(
        self, shape: tuple[int, int], indices: tuple[Tensor, Tensor], values: Tensor, *, accumulate: bool
    ) -> Tensor:
        zeros = torch.zeros(shape, dtype=torch.float32, device=values.device)
        return zeros.index_put_(indices, values, accumulate=accumulate)

    def pool_tokens(self, hidden: Tensor, method: Method, batch: PackedBatch) -> Tensor | None:
        if not _is_for_c(hidden):
            return None
        num_unpooled = None if method == "LAST" or batch.num_unpooled is None else batch.num_unpooled.numpy()
        return _to_tensor(pool_rows(hidden.detach().numpy(), method, batch.cu_seqlens.numpy(), num_unpooled))

    def mean_of_table_rows(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        # on a CPU seven times as fast as the sums of `segment_reduce`
        rows = torch.arange(batch.num_tokens, device=hidden.device)
        return F.embedding_bag(rows, hidden.float(), batch.cu_seqlens[:-1], mode="mean")

    def sum_by_sequence(self, x: Tensor, batch: PackedBatch, num_unpooled: Tensor | None) -> Tensor:
        # sums of thousands of values lose precision in 16 bits: accumulate in float32
        if can_use_triton(x) and x.stride(-1) == 1:
            from cenote.kernels.gpu.segment_sum import sum_by_sequence

            return sum_by_sequence(x, batch.cu_seqlens, num_unpooled)
        wide = x.float()
        if num_unpooled is not None:
            wide = wide * (batch.positions >= num_unpooled[batch.segment_ids])[:, None]
        return torch.segment_reduce(wide, "sum", offsets=batch.cu_seqlens)

    def max_by_segment(self, x: Tensor, offsets: Tensor) -> Tensor:
        return torch.segment_reduce(x, "max", offsets=offsets, unsafe=True)

    def normalize(self, x: Tensor) -> Tensor:
        normalized = normalize_rows(x.detach().numpy(), MIN_NORM) if _is_for_c(x) else None
        return F.normalize(x, p=2.0, dim=-1, eps=MIN_NORM) if normalized is None else torch.from_numpy(normalized)

    def layer_norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)

    def softmax(self, x: Tensor) -> Tensor:
        return x.softmax(dim=-1)

    def activate(self, x: Tensor, name: str) -> Tensor:
        return ACTIVATIONS[name](x)

    def relu_(self, x: Tensor) -> Tensor:
        return x.relu_()

    def log1p_(self, x: Tensor) -> Tensor:
        return x.log1p_()


def _is_for_c(x: Tensor) -> bool:
    return x.is_cpu and x.dtype is torch.float32


def _to_tensor(array: Array | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)
