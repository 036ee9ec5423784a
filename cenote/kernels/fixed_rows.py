"""Linear layers whose result for a row does not depend on the number of rows: products of fixed numbers of rows.

Libraries select the kernel of a matrix product by its shape, and kernels differ in the order of their sums. A product
is therefore split into blocks whose numbers of rows are fixed, and the last block is padded. Which numbers give a row
the same bits, at every position in the block, is measured once for each shape of weights: the order of the sums depends
on shapes and threads, not on values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.linear import PrepackedLinear

logger = logging.getLogger("cenote")

# smallest and largest block. At least 16: the start of every block is aligned to 64 bytes.
BLOCK_ROWS = {"cpu": (16, 1024), "cuda": (256, 8192)}
# on a CPU, weights of more elements have smaller blocks, so that the measurement takes a second or less
MAX_LARGE_BLOCK_WEIGHTS, WIDE_BLOCK_ROWS = 1 << 22, 256
# blocks that are multiples of the smallest one, so that few rows are one product; above them sizes double
NUM_MULTIPLES = 8
# rows by which a block is rotated to find out whether the position of a row matters
ROTATIONS = (1, 3, 7, 12)
# torch processes as many elements serially, for every elementwise function
SERIAL_ELEMENTS = 2048
# elements per thread from which torch splits a tensor evenly over all threads, for every elementwise function
PARALLEL_ELEMENTS = 32768
# a multiple of the elements of a vector loop, with every instruction set
VECTOR_ELEMENTS = 64

Product = Callable[[Tensor], Tensor]  # [rows, inputs] -> [rows, outputs]


SizesByShape = dict[tuple[object, ...], tuple[int, ...]]


class FixedRowsLinear(nn.Module):
    """activation(x W' + b), with the same bits for a row in every batch."""

    def __init__(self, inner: nn.Linear | PrepackedLinear, in_features: int, sizes_by_shape: SizesByShape) -> None:
        """`sizes_by_shape`: block sizes that are already known, shared by the layers of a model."""
        super().__init__()
        self.inner = inner
        self.in_features, self.out_features = in_features, inner.out_features
        # oneDNN applies the activation in the product; elsewhere it would run over a number of elements that varies
        self.activation = None if isinstance(inner, PrepackedLinear) else getattr(inner, "activation", None)
        self.sizes_by_shape = sizes_by_shape

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = torch.empty((len(rows), self.out_features), dtype=x.dtype, device=x.device)
        start = 0
        for size in split_rows(len(rows), self.get_block_sizes(x)):
            part = rows[start : start + size]
            if len(part) < size:  # the last one
                part = torch.cat((part, part.new_zeros(size - len(part), self.in_features)))
                out[start:] = self._multiply(part)[: len(rows) - start]
            elif isinstance(self.inner, nn.Linear):
                self._multiply_into(part, out[start : start + size])
            else:
                out[start : start + size] = self.inner(part)
            start += size
        if self.activation is not None:
            out = apply_elementwise(ACTIVATIONS[self.activation], out)
        return out.view(*x.shape[:-1], self.out_features)

    def get_block_sizes(self, like: Tensor) -> tuple[int, ...]:
        """Return the numbers of rows that give a row the same bits, the largest first."""
        inner = self.inner
        key = (
            type(inner),
            self.in_features,
            self.out_features,
            inner.bias is None,
            like.dtype,
            torch.get_num_threads(),
        )
        if (sizes := self.sizes_by_shape.get(key)) is None:
            smallest, largest = BLOCK_ROWS[like.device.type]
            if like.device.type == "cpu" and self.in_features * self.out_features > MAX_LARGE_BLOCK_WEIGHTS:
                largest = WIDE_BLOCK_ROWS
            make_rows = partial(_random_rows, self.in_features, like)
            sizes = self.sizes_by_shape[key] = find_equal_sizes(self._multiply, make_rows, smallest, largest)
        return sizes

    def _multiply(self, x: Tensor) -> Tensor:
        if not isinstance(self.inner, nn.Linear):
            return self.inner(x)  # type: ignore[no-any-return]
        out = torch.empty((len(x), self.out_features), dtype=x.dtype, device=x.device)
        self._multiply_into(x, out)
        return out

    def _multiply_into(self, x: Tensor, out: Tensor) -> None:
        assert isinstance(self.inner, nn.Linear)
        if self.inner.bias is None:
            torch.mm(x, self.inner.weight.t(), out=out)
        else:
            torch.addmm(self.inner.bias, x, self.inner.weight.t(), out=out)


def split_rows(num_rows: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the sizes of consecutive blocks that hold the rows, the largest first; only the last is not full."""
    blocks: list[int] = []
    num_left = -(-num_rows // sizes[-1]) * sizes[-1]  # all sizes are multiples of the smallest
    for size in sizes:
        blocks += [size] * (num_left // size)
        num_left %= size
    return blocks


def find_equal_sizes(
    multiply: Product, make_rows: Callable[[int], Tensor], smallest: int, largest: int
) -> tuple[int, ...]:
    """Return the block sizes whose results are those of the smallest, descending.

    (1,) if the results of a block depend on the positions of its rows: then every row is a product of its own.
    """
    rows = make_rows(largest)
    expected = torch.cat([multiply(part) for part in torch.split(rows, smallest)])
    first = rows[:smallest]
    if not all(torch.equal(multiply(first.roll(n, 0)).roll(-n, 0), expected[:smallest]) for n in ROTATIONS):
        logger.warning("matrix products depend on the positions of their rows; rows are computed one by one")
        return (1,)
    sizes = [smallest * count for count in range(2, NUM_MULTIPLES + 1)]
    while (size := 2 * sizes[-1]) <= largest:
        sizes.append(size)
    equal = [size for size in sizes if torch.equal(multiply(rows[-size:]), expected[-size:])]
    return (*reversed(equal), smallest)


def apply_elementwise(function: Product, x: Tensor) -> Tensor:
    """Apply a function to each element, with the same bits whatever the number and positions of elements.

    On a CPU, torch computes the last elements of every thread with scalar code, whose functions round differently from
    the vector code. Here no call has such elements: it is serial or evenly split, and a multiple of the vector size.
    """
    if x.device.type != "cpu":
        return function(x)
    flat, threads = x.contiguous().view(-1), torch.get_num_threads()
    out = torch.empty_like(flat)
    start = 0
    if len(flat) >= PARALLEL_ELEMENTS * threads:
        start = len(flat) // (VECTOR_ELEMENTS * threads) * VECTOR_ELEMENTS * threads
        out[:start] = function(flat[:start])
    end = start + (len(flat) - start) // VECTOR_ELEMENTS * VECTOR_ELEMENTS
    for first in range(start, end, SERIAL_ELEMENTS):
        part = slice(first, min(first + SERIAL_ELEMENTS, end))
        out[part] = function(flat[part])
    if end < len(flat):
        padded = flat.new_zeros(VECTOR_ELEMENTS)
        padded[: len(flat) - end] = flat[end:]
        out[end:] = function(padded)[: len(flat) - end]
    return out.view(x.shape)


def _random_rows(width: int, like: Tensor, num_rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_rows, width, generator=generator).to(like.device, like.dtype)
