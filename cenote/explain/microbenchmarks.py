"""Microbenchmarks of a model's matrix products and attention, in its shapes and on its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.config.engine import Quantization
from cenote.errors import LoadError
from cenote.explain.flops import AttentionShape, MatMul, ModelFlops
from cenote.kernels.attention import attend
from cenote.kernels.fp8 import Fp8Linear
from cenote.layers.linear import Linear
from cenote.layers.post_load import process_weights_after_loading
from cenote.packed_batch import PackedBatch

BenchmarkFn = Callable[[], object]
LayerGroup: TypeAlias = tuple[tuple[str, MatMul], ...]  # matrix products of one part of a layer, by name

# weights alternate over this many bytes: more than the caches hold, as in a real model
MIN_CYCLED_WEIGHT_BYTES = 64 * 1024**2


class LinearFactory:
    """Creates linear layers as a loaded model would have them."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None = None,
        *,
        matmul_dtype: torch.dtype | None = None,
        is_post_processed: bool = True,
    ) -> None:
        self.dtype, self.device, self.quantization = dtype, device, quantization
        self.matmul_dtype = matmul_dtype  # in which the C kernels of a CPU multiply
        self.is_post_processed = is_post_processed  # False: plain layers of the Transformers library

    def make_layer(self, inputs: int, outputs: int) -> nn.Module:
        return self.make_layers({"qkv": (inputs, outputs)})["qkv"]

    def make_layers(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, nn.Module]:
        """Create the layers of one part by name; post-processing of one may depend on the others."""
        parent = nn.Module()
        for name, (inputs, outputs) in shapes.items():
            made = Linear(inputs, outputs, bias=True).to(self.device, self.dtype)
            parent.add_module(name, made.requires_grad_(False))
        if self.is_post_processed:
            process_weights_after_loading(parent, self.device, self.quantization, self.matmul_dtype)
        return dict(parent.named_children())


class MatMulBenchmark:
    """Run every matrix product of a model once, in order, with weights that are not in a cache."""

    def __init__(self, model_flops: ModelFlops, linear_factory: LinearFactory) -> None:
        self.linears, self.dtype, self.device = linear_factory, linear_factory.dtype, linear_factory.device
        # heads are timed with pooling; routers and convolutions with the other layers
        timed = [product for product in model_flops.matmuls if product.part in ("linear", "experts")]
        self.flops = sum(product.flops for product in timed)
        families = [_name_group(group) for _, group in groupby(timed, key=_parent_path)]
        sizes = {family: sum(product.num_weights for _, product in family) for family in families}
        copies = max(1, MIN_CYCLED_WEIGHT_BYTES // max(1, sum(sizes.values()) * self.dtype.itemsize))
        made = {
            family: cycle([self._make_group(family) for _ in range(min(copies, families.count(family)))])
            for family in sizes
        }
        self.layers = [layer for family in families for layer in next(made[family])]
        self._states: dict[int, Tensor] = {}  # by width, with the rows of the largest batch

    def make_benchmark(self, num_tokens: int, block_tokens: int | None = None) -> BenchmarkFn:
        """Run all products for that many tokens; `at_once`: in row blocks, as fused layers do."""
        sizes = [num_tokens] if block_tokens is None else [block_tokens] * (num_tokens // block_tokens)
        sizes += [num_tokens - sum(sizes)] if sum(sizes) < num_tokens else []
        read = {
            (size, product.inputs, type(layer)): _prepare_input(
                layer, self._input_rows(product.inputs, size * product.uses_per_token)
            )
            for size in set(sizes)
            for product, layer in self.layers
        }

        def run() -> None:
            with torch.inference_mode():
                for size in sizes:
                    for product, layer in self.layers:
                        layer(read[size, product.inputs, type(layer)])

        return run

    def _input_rows(self, width: int, count: int) -> Tensor:
        if width not in self._states or len(self._states[width]) < count:
            self._states[width] = torch.randn(count, width, device=self.device).to(self.dtype)
        return self._states[width][:count]

    def _make_group(self, family: LayerGroup) -> list[tuple[MatMul, nn.Module]]:
        shapes = {name: (product.inputs, product.outputs) for name, product in family if product.part == "linear"}
        try:
            layers = self.linears.make_layers(shapes) if shapes else {}
        except LoadError:  # this layer is not quantized
            layers = LinearFactory(
                self.dtype, self.device, is_post_processed=self.linears.is_post_processed
            ).make_layers(shapes)
        return [(product, layers.get(name) or UniformExperts(product, self.linears)) for name, product in family]


class UniformExperts(nn.Module):
    """The weights of all experts; tokens are assumed to be distributed evenly."""

    def __init__(self, product: MatMul, linears: LinearFactory) -> None:
        super().__init__()
        shape = (product.num_matrices, product.outputs, product.inputs)
        self.weights = torch.randn(shape, device=linears.device, dtype=linears.dtype)

    def forward(self, rows: Tensor) -> Tensor:
        count = len(self.weights)
        ends = torch.arange(1, count + 1, device=rows.device) * len(rows) // count
        return F.grouped_mm(rows, self.weights.transpose(1, 2), offs=ends.to(torch.int32))


def _parent_path(product: MatMul) -> str:
    return product.path.rpartition(".")[0]


def _name_group(products: Iterable[MatMul]) -> LayerGroup:
    return tuple((product.path.rpartition(".")[2] or str(at), product) for at, product in enumerate(products))


def _prepare_input(layer: nn.Module, rows: Tensor) -> Any:
    """Return fp8 input: the preceding layer produces it, so quantization is not part of the product."""
    if not isinstance(layer, Fp8Linear):
        return rows
    from cenote.kernels.gpu.activations import activate_fp8

    return activate_fp8(rows, None)


def make_attention_benchmark(
    attentions: Sequence[AttentionShape], batches: Sequence[PackedBatch], dtype: torch.dtype, device: torch.device
) -> BenchmarkFn | None:
    """Time the attention of all layers over batches; None if the layers do not use our kernels."""
    own = [mixing for mixing in attentions if mixing.uses_kernel]
    if not own:
        return None
    calls = [{mixing: _make_attention_call(mixing, batch, dtype, device) for mixing in set(own)} for batch in batches]

    def run() -> None:
        with torch.inference_mode():
            for each in calls:
                for mixing in own:
                    each[mixing]()

    return run


def make_random_qkv(
    attention: AttentionShape, num_tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random q, k, v as views of one projection, as in a model."""
    widths = [
        heads * attention.head_dim for heads in (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
    ]
    mixed = torch.randn(num_tokens, sum(widths), device=device).to(dtype)
    query, key, value = (part.view(num_tokens, -1, attention.head_dim) for part in torch.split(mixed, widths, dim=-1))
    return query, key, value


def _make_attention_call(
    mixing: AttentionShape, batch: PackedBatch, dtype: torch.dtype, device: torch.device
) -> BenchmarkFn:
    query, key, value = make_random_qkv(mixing, batch.num_tokens, dtype, device)
    bias = torch.randn(mixing.num_heads, 2 * batch.max_seqlen - 1, device=device).to(dtype) if mixing.has_bias else None
    sinks = torch.randn(mixing.num_heads, device=device).to(dtype) if mixing.has_sinks else None
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
