"""The pieces of a model by themselves, in its shapes, on its kernels: matrix products, attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.config.engine import Quantization
from cenote.errors import LoadError
from cenote.explain.flops import Arithmetic, Mixing, Product
from cenote.kernels.attention import attend
from cenote.kernels.fp8 import Fp8Linear
from cenote.kernels.post_load import finish
from cenote.layers.linear import Linear
from cenote.packed_batch import PackedBatch, pack

Work = Callable[[], object]
Family: TypeAlias = tuple[tuple[str, Product], ...]  # the products of one part of a layer, by name

# so many bytes of weights take turns: more than caches hold, as the layers of a model are
WEIGHTS_IN_TURN = 64 * 1024**2


def batch_of(lengths: Sequence[int], vocabulary: int, device: torch.device) -> PackedBatch:
    """Sequences of these lengths, of any tokens."""
    tokens = torch.randint(0, vocabulary, (sum(lengths),))
    packed = pack([part.tolist() for part in torch.split(tokens, list(lengths))])
    if device.type == "cpu":
        return packed
    token_ids, positions, offsets = (x.to(device) for x in (packed.token_ids, packed.positions, packed.offsets))
    return replace(packed, token_ids=token_ids, positions=positions, offsets=offsets)


class Linears:
    """Linear layers of any shape, as a loaded model would have them."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None = None,
        *,
        finished: bool = True,
    ) -> None:
        self.dtype, self.device, self.quantization = dtype, device, quantization
        self.finished = finished  # False: as another library leaves them

    def layer(self, inputs: int, outputs: int) -> nn.Module:
        return self.siblings({"qkv": (inputs, outputs)})["qkv"]

    def siblings(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, nn.Module]:
        """Those of one part of a layer, by name: what is done to each may depend on the others."""
        parent = nn.Module()
        for name, (inputs, outputs) in shapes.items():
            made = Linear(inputs, outputs, bias=True).to(self.device, self.dtype)
            parent.add_module(name, made.requires_grad_(False))
        if self.finished:
            finish(parent, self.device, self.quantization)
        return dict(parent.named_children())


class Products:
    """Every matrix product of a model once, in its order, with no weight so near that it stays in a cache."""

    def __init__(self, arithmetic: Arithmetic, linears: Linears) -> None:
        self.linears, self.dtype, self.device = linears, linears.dtype, linears.device
        # heads are timed as a part of pooling, routers and convolutions stay with the rest
        timed = [product for product in arithmetic.products if product.part in ("linear", "experts")]
        self.flops = sum(product.flops for product in timed)
        families = [_names(group) for _, group in groupby(timed, key=_parent)]
        sizes = {family: sum(product.size for _, product in family) for family in families}
        copies = max(1, WEIGHTS_IN_TURN // max(1, sum(sizes.values()) * self.dtype.itemsize))
        made = {
            family: cycle([self._layers(family) for _ in range(min(copies, families.count(family)))])
            for family in sizes
        }
        self.order = [layer for family in families for layer in next(made[family])]
        self._states: dict[int, Tensor] = {}  # by width, as many rows as the largest batch has

    def work(self, num_tokens: int, at_once: int | None = None) -> Work:
        """All of them for so many tokens; `at_once`: for some tokens after the other, as fused layers have it."""
        sizes = [num_tokens] if at_once is None else [at_once] * (num_tokens // at_once)
        sizes += [num_tokens - sum(sizes)] if sum(sizes) < num_tokens else []
        read = {
            (size, product.inputs, type(layer)): _as_read(layer, self._rows(product.inputs, size * product.uses))
            for size in set(sizes)
            for product, layer in self.order
        }

        def run() -> None:
            with torch.inference_mode():
                for size in sizes:
                    for product, layer in self.order:
                        layer(read[size, product.inputs, type(layer)])

        return run

    def _rows(self, width: int, count: int) -> Tensor:
        if width not in self._states or len(self._states[width]) < count:
            self._states[width] = torch.randn(count, width, device=self.device).to(self.dtype)
        return self._states[width][:count]

    def _layers(self, family: Family) -> list[tuple[Product, nn.Module]]:
        shapes = {name: (product.inputs, product.outputs) for name, product in family if product.part == "linear"}
        try:
            layers = self.linears.siblings(shapes) if shapes else {}
        except LoadError:  # these are not quantized; others are, or the model would not have been loaded
            layers = Linears(self.dtype, self.device, finished=self.linears.finished).siblings(shapes)
        return [(product, layers.get(name) or SpreadExperts(product, self.linears)) for name, product in family]


class SpreadExperts(nn.Module):
    """One matrix of every expert; a router spreads tokens about evenly over what there is."""

    def __init__(self, product: Product, linears: Linears) -> None:
        super().__init__()
        shape = (product.matrices, product.outputs, product.inputs)
        self.weights = torch.randn(shape, device=linears.device, dtype=linears.dtype)

    def forward(self, rows: Tensor) -> Tensor:
        count = len(self.weights)
        ends = torch.arange(1, count + 1, device=rows.device) * len(rows) // count
        return F.grouped_mm(rows, self.weights.transpose(1, 2), offs=ends.to(torch.int32))


def _parent(product: Product) -> str:
    return product.path.rpartition(".")[0]


def _names(products: Iterable[Product]) -> Family:
    return tuple((product.path.rpartition(".")[2] or str(at), product) for at, product in enumerate(products))


def _as_read(layer: nn.Module, rows: Tensor) -> Any:
    """What comes before an fp8 layer hands it fp8; making it is no part of the product."""
    if not isinstance(layer, Fp8Linear):
        return rows
    from cenote.kernels.gpu.activations import activated_fp8

    return activated_fp8(rows, None)


def attention_work(
    mixings: Sequence[Mixing], batches: Sequence[PackedBatch], dtype: torch.dtype, device: torch.device
) -> Work | None:
    """Attention of all layers, for one batch after the other; None where no kernel of ours does it."""
    own = [mixing for mixing in mixings if mixing.by_kernel]
    if not own:
        return None
    calls = [{mixing: _call(mixing, batch, dtype, device) for mixing in set(own)} for batch in batches]

    def run() -> None:
        with torch.inference_mode():
            for each in calls:
                for mixing in own:
                    each[mixing]()

    return run


def query_key_value(
    mixing: Mixing, num_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """As a model hands them over: three views of what one matrix gave."""
    widths = [heads * mixing.head_dim for heads in (mixing.heads, mixing.kv_heads, mixing.kv_heads)]
    mixed = torch.randn(num_tokens, sum(widths), device=device).to(dtype)
    query, key, value = (part.view(num_tokens, -1, mixing.head_dim) for part in torch.split(mixed, widths, dim=-1))
    return query, key, value


def _call(mixing: Mixing, batch: PackedBatch, dtype: torch.dtype, device: torch.device) -> Work:
    query, key, value = query_key_value(mixing, batch.num_tokens, dtype, device)
    bias = torch.randn(mixing.heads, 2 * batch.max_length - 1, device=device).to(dtype) if mixing.bias else None
    sinks = torch.randn(mixing.heads, device=device).to(dtype) if mixing.sinks else None
    return lambda: attend(
        query,
        key,
        value,
        batch,
        causal=mixing.causal,
        window=mixing.window,
        scale=mixing.scale,
        softcap=mixing.softcap,
        bias=bias,
        sinks=sinks,
    )
