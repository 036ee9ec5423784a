"""Tensor parallelism: a pass that splits the layers of a backbone over several ranks.

Attention is split by heads and an MLP by its intermediate size, so that a layer needs one sum over all ranks after the
attention and one after the MLP. Everything else is replicated: every rank computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.attention import Attention, NormedAttention
from cenote.layers.backbone import Backbone
from cenote.layers.convolution import GatedConvolution
from cenote.layers.disentangled_attention import DisentangledAttention
from cenote.layers.gated_delta_net import GatedDeltaNet
from cenote.layers.latent_attention import LatentAttention
from cenote.layers.mamba import Mamba
from cenote.layers.mlp import MLP, GatedMLP, NormedGatedMLP
from cenote.layers.moe import MixtureOfExperts
from cenote.layers.parallel_group import ParallelGroup
from cenote.layers.sharding import Shard, ShardBuilder, scale_range

# grouped matrix products need rows of a multiple of so many bytes
EXPERT_ROW_BYTES = 16


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How a kind of layer is split; the first rule of its class, or of the nearest base class, applies."""

    layer_class: type[nn.Module]
    label: str
    treatment: str  # for the documentation and for errors
    split: Callable[[Any, ShardBuilder], None] | None = None  # None: replicated
    is_refused: bool = False
    sum_module: str = ""  # child whose output is summed over the ranks; "": that of the layer itself


class SplitLayers:
    """The layers of a backbone that are split over ranks.

    They are found at once: kernels that replace layers after loading leave modules without parameters.
    """

    def __init__(self, backbone: Backbone, rank: int, num_ranks: int, dtype: torch.dtype) -> None:
        """Shrink the layers of a backbone on the meta device to those of a rank; `dtype` is that of its weights."""
        # an encoder-decoder has two stacks of layers
        self.stacks = [module for module in backbone.modules() if isinstance(module, Backbone)]
        layers: list[Any] = [layer for stack in self.stacks for layer in stack.layers]
        parts: list[tuple[nn.Module, LayerRule | None]] = [
            (part, find_rule(part)) for layer in layers for part in (layer.mixer, layer.mlp)
        ]
        self.parts = [(part, rule) for part, rule in parts if rule is not None and rule.split is not None]
        builder = ShardBuilder(rank, num_ranks, dtype)
        for part, rule in self.parts:
            assert rule.split is not None
            rule.split(part, builder)
        self.shards: dict[str, Shard] = builder.by_path(backbone)

    def drop_biases(self) -> None:
        """Remove the biases that are added to a sum over ranks; only the first rank keeps them."""
        for part, rule in self.parts:
            if isinstance(part, MixtureOfExperts):
                part.bias = part.experts.down_bias = None
                if part.shared is not None:
                    part.shared.down.bias = None  # type: ignore[assignment]  # a parameter, or that of a quantized layer
            else:
                part.get_submodule(rule.sum_module).bias = None  # type: ignore[assignment]

    def connect(self, group: ParallelGroup) -> None:
        """Sum the outputs of split layers over the ranks. Called after kernels have replaced layers."""

        def sum_output(module: nn.Module, arguments: object, output: Tensor) -> Tensor:
            return group.all_reduce(output.contiguous())

        connected = set[nn.Module]()  # layers that share their weights are one module
        for part, rule in self.parts:
            if (module := part.get_submodule(rule.sum_module)) not in connected:
                module.register_forward_hook(sum_output)
                connected.add(module)
            if isinstance(part, Attention) and part.has_full_width_qk_norm:
                _gather_qk_norms(part, group)
        for stack in self.stacks:
            if stack.bias is not None:
                stack.bias.register_forward_hook(partial(_select_heads, group, stack.spec.num_heads))


def find_rule(layer: nn.Module) -> LayerRule | None:
    """Return the rule of a layer, None for one without parameters; raise LoadError if it cannot be split."""
    if next(layer.parameters(), None) is None:
        return None
    rule = next((RULES_BY_CLASS[base] for base in type(layer).__mro__ if base in RULES_BY_CLASS), None)
    if rule is None or rule.is_refused:
        name = type(layer).__name__
        reason = f"{name} layers have no rule" if rule is None else f"{rule.label}: {rule.treatment}"
        raise LoadError(f"tensor parallelism is not supported for this model ({reason}); use tensor_parallel_size=1")
    return rule


def _select_heads(group: ParallelGroup, num_heads: int, module: nn.Module, arguments: object, output: Tensor) -> Tensor:
    """Return the rows of this rank of position biases, [heads, distances]."""
    share = num_heads // group.num_ranks
    return output[group.rank * share : (group.rank + 1) * share]


def _gather_qk_norms(attention: Attention, group: ParallelGroup) -> None:
    """Compute QK norms over the width of all heads: gather the heads of all ranks before them, select after them."""
    for norm, num_heads in zip((attention.query_norm, attention.key_norm), attention.num_qkv_heads, strict=False):
        assert norm is not None
        width, full_width = num_heads * attention.head_dim, norm.get_parameter("weight").shape[0]
        repeats = group.num_ranks * width // full_width  # ranks that have the same KV head

        def gather(width: int, repeats: int, module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
            gathered = group.gather_columns(arguments[0], [width] * group.num_ranks)
            parts = torch.split(gathered, width, dim=1)[::repeats]
            return (gathered if repeats == 1 else torch.cat(parts, dim=1),)

        def select(width: int, repeats: int, module: nn.Module, arguments: object, output: Tensor) -> Tensor:
            first = group.rank // repeats * width
            return output[:, first : first + width]

        norm.register_forward_pre_hook(partial(gather, width, repeats))
        norm.register_forward_hook(partial(select, width, repeats))


def split_attention(attention: Attention, builder: ShardBuilder) -> None:
    num_heads, num_kv_heads, _ = attention.num_qkv_heads
    queries, keys = builder.split_heads(num_heads, num_kv_heads)
    rows, offset, widths = [], 0, attention.projection_sizes
    for heads, count, width in zip((queries, keys, keys), attention.num_qkv_heads, widths, strict=True):
        rows.append(scale_range(heads, width // count, offset))
        offset += width
    builder.split_rows(attention.qkv, tuple(rows))
    columns = scale_range(queries, attention.head_dim)
    builder.split_columns(attention.out, (columns,))
    if attention.sinks is not None:
        builder.shrink(attention, "sinks", 0, (queries,))
    if isinstance(attention, DisentangledAttention):
        for table in ("position_key", "position_query"):
            builder.shrink(attention, table, 1, (columns,))
    attention.num_qkv_heads = (queries[1] - queries[0], keys[1] - keys[0], keys[1] - keys[0])
    attention.qkv_sizes = [count * attention.head_dim for count in attention.num_qkv_heads]
    attention.projection_sizes = [end - start for start, end in rows]


def split_latent_attention(attention: LatentAttention, builder: ShardBuilder) -> None:
    heads = builder.split_range(attention.num_heads, "the number of attention heads")
    key_size = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    query_rows = scale_range(heads, key_size)
    if attention.query_up is not None:
        builder.split_rows(attention.query_up, (query_rows,))
    else:  # queries come from `down`, whose other rows all heads share
        query_width = attention.down_sizes[0]
        builder.split_rows(attention.down, (query_rows, (query_width, sum(attention.down_sizes))))
        attention.down_sizes = [query_rows[1] - query_rows[0], *attention.down_sizes[1:]]
    value_size = attention.v_head_dim
    builder.split_rows(attention.latent_up, (scale_range(heads, attention.qk_nope_head_dim + value_size),))
    builder.split_columns(attention.out, (scale_range(heads, value_size),))
    attention.num_heads = heads[1] - heads[0]


def split_delta_net(net: GatedDeltaNet, builder: ShardBuilder) -> None:
    spec = net.delta_spec
    key_heads = builder.split_range(spec.num_key_heads, "the number of key heads of linear attention layers")
    value_heads = scale_range(key_heads, spec.num_value_heads // spec.num_key_heads)
    key_width, _, value_width = net.qkv_sizes
    keys, values = scale_range(key_heads, spec.key_head_dim), scale_range(value_heads, spec.value_head_dim)
    shift = [0, key_width, 2 * key_width, 2 * key_width + value_width]
    qkv = (keys, _move(keys, shift[1]), _move(values, shift[2]))
    betas = 2 * (key_width + value_width)
    others = (_move(values, shift[3]), _move(value_heads, betas), _move(value_heads, betas + spec.num_value_heads))
    builder.split_rows(net.into, (*qkv, *others))
    builder.shrink(net.conv, "weight", 0, qkv)
    for name in ("log_rate", "step_bias"):
        builder.shrink(net, name, 0, (value_heads,))
    builder.split_columns(net.project, (values,))
    net.qkv_sizes = [end - start for start, end in qkv]
    net.projection_sizes = [sum(net.qkv_sizes), *(end - start for start, end in others)]
    net.delta_spec = replace(
        spec, num_key_heads=key_heads[1] - key_heads[0], num_value_heads=value_heads[1] - value_heads[0]
    )


def split_convolution(convolution: GatedConvolution, builder: ShardBuilder) -> None:
    width = convolution.project.in_features
    channels = builder.split_range(width, "the number of channels of convolution layers")
    builder.split_rows(convolution.into, tuple(_move(channels, part * width) for part in range(3)))
    for name in ("weight", "bias"):
        builder.shrink(convolution.conv, name, 0, (channels,))
    builder.split_columns(convolution.project, (channels,))


def split_mlp(mlp: MLP | GatedMLP, builder: ShardBuilder) -> None:
    size = mlp.down.in_features
    part = builder.split_range(size, "intermediate_size")
    builder.split_rows(mlp.up, (part, _move(part, size)) if isinstance(mlp, GatedMLP) else (part,))
    builder.split_columns(mlp.down, (part,))


def split_experts(layer: MixtureOfExperts, builder: ShardBuilder) -> None:
    experts = layer.experts
    size = experts.down.shape[2]
    part = builder.split_range(size, "the intermediate size of experts", row_bytes=EXPERT_ROW_BYTES)
    rows = (part, _move(part, size)) if experts.is_gated else (part,)
    builder.shrink(experts, "up", 1, rows)
    builder.shrink(experts, "up_bias", 1, rows)
    builder.shrink(experts, "down", 2, (part,))
    if layer.shared is not None:
        split_mlp(layer.shared, builder)


def _move(bounds: tuple[int, int], offset: int) -> tuple[int, int]:
    return scale_range(bounds, 1, offset)


LAYER_RULES = (
    LayerRule(
        Attention,
        "attention",
        "split by heads; ranks that outnumber the KV heads share them",
        split_attention,
        sum_module="out",
    ),
    LayerRule(
        LatentAttention,
        "latent attention (DeepSeek)",
        "split by heads; the latent projections are replicated",
        split_latent_attention,
        sum_module="out",
    ),
    LayerRule(
        GatedDeltaNet,
        "gated delta networks (Qwen3.5)",
        "split by heads",
        split_delta_net,
        sum_module="project",
    ),
    LayerRule(
        GatedConvolution, "short convolutions (LFM2)", "split by channels", split_convolution, sum_module="project"
    ),
    LayerRule(Mamba, "Mamba layers (Jamba)", "replicated: every channel depends on all others"),
    LayerRule(MLP, "MLP", "split by intermediate size", split_mlp, sum_module="down"),
    LayerRule(GatedMLP, "gated MLP", "split by intermediate size", split_mlp, sum_module="down"),
    LayerRule(MixtureOfExperts, "mixture of experts", "every expert is split by its intermediate size", split_experts),
    LayerRule(
        NormedAttention,
        "attention with an output norm (EVA-02)",
        "the norm needs the heads of all ranks",
        is_refused=True,
    ),
    LayerRule(
        NormedGatedMLP,
        "MLP with an inner norm (EVA-02)",
        "the norm needs the activations of all ranks",
        is_refused=True,
    ),
)
RULES_BY_CLASS = {rule.layer_class: rule for rule in LAYER_RULES}
