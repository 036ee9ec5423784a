"""NativeBackbone: a transformer over a packed batch whose layers run in one call of the C library."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cenote.kernels.cpu.encoder import (
    LOCAL_ROPE,
    NO_ROPE,
    ROPE,
    EncoderShape,
    LayerWeights,
    LevelEncoder,
    NormWeights,
    supports,
)
from cenote.kernels.cpu.library import ACTIVATION_CODES, CPULevel
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.layers.activation_names import resolve_activation
from cenote.layers.spec import BackboneSpec
from cenote.native.embedding import EmbeddingTables, make_embedding
from cenote.native.parameters import list_layer_norms
from cenote.native.positions import Positions
from cenote.packed_batch import PackedBatch
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

LINEARS = ("mixer.qkv", "mixer.out", "mlp.up", "mlp.down")  # of every layer
LAYER_NORMS = ("mixer_norm", "mlp_norm", "mixer_out_norm", "mlp_out_norm", "mixer.query_norm", "mixer.key_norm")


class NativeBackbone:
    """Returns one hidden state per token in float32, [tokens, hidden]."""

    def __init__(
        self,
        spec: BackboneSpec,
        parameters: Mapping[str, Array],
        linears: Mapping[str, PackedLinear],
        level: CPULevel | None,
    ) -> None:
        """`linears` have the paths of `iter_linears`, `parameters` are all others, `level` is that of the linears."""
        self.spec = spec
        self.linears = linears
        self.positions = Positions(spec, _optional_float32(parameters, "bias.weight"))
        self.embed: EmbeddingTables = make_embedding(
            spec, parameters, make_norm(spec, parameters, "embed.norm"), linears.get("embed.projection")
        )
        self.encoder: LevelEncoder | None = None  # of a model without layers, which is a table
        if level is not None and spec.num_layers:
            layers = [self._make_layer(parameters, layer) for layer in range(spec.num_layers)]
            assert supports(layers), "find_unsupported refuses such specs"
            final_norm = make_norm(spec, parameters, "norm")
            self.encoder = LevelEncoder(level, layers, make_shape(spec), self.embed.make_tables(), final_norm)

    def __call__(self, batch: PackedBatch[Array]) -> Array:
        if self.encoder is None:
            return self.embed.look_up(batch)
        tables = self.positions.look_up(batch)
        if self.encoder.tables is None or batch.inputs_embeds is not None:
            states: Array | None = self.encoder.encode_embeds(self.embed.look_up(batch), batch.cu_seqlens, tables)
        else:
            states = self.encoder.encode_ids(
                batch.token_ids, batch.positions, batch.token_type_ids, batch.cu_seqlens, tables
            )
        if states is None:
            raise IndexError("a token id, a token type or a position is out of the range of its embedding table")
        return to_float32(states)

    def _make_layer(self, parameters: Mapping[str, Array], layer: int) -> LayerWeights:
        spec, prefix = self.spec, f"layers.{layer}"
        norms = tuple(make_norm(spec, parameters, f"{prefix}.{name}") for name in LAYER_NORMS)
        is_local = spec.is_local(layer)
        rope = NO_ROPE if spec.rope is None else LOCAL_ROPE if is_local and spec.local_rope is not None else ROPE
        qkv, out, up, down = (self.linears[f"{prefix}.{name}"] for name in LINEARS)
        return LayerWeights(qkv, out, up, down, norms, rope, spec.window if is_local else None)


def iter_linears(spec: BackboneSpec) -> dict[str, str | None]:
    """Return the activation of every linear layer of a spec by its path, None for those without one."""
    activation = None if spec.is_gated_mlp else resolve_activation(spec.activation)
    linears = {
        f"layers.{layer}.{name}": activation if name == "mlp.up" else None
        for layer in range(spec.num_layers)
        for name in LINEARS
    }
    has_projection = spec.embedding_size not in (None, spec.hidden_size)
    return {"embed.projection": None, **linears} if has_projection else linears


def make_shape(spec: BackboneSpec) -> EncoderShape:
    """Return what all layers have in common."""
    is_post_norm = spec.norm_order == "post"
    return EncoderShape(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_key_value_heads,
        head_dim=spec.head_size,
        scale=spec.attention_scale(0),
        softcap=spec.softcap,
        causal=spec.causal,
        is_post_norm=is_post_norm,
        residual_scale=1.0 if is_post_norm else spec.residual_scale,
        has_interleaved_rope=spec.rope is not None and spec.rope.interleaved,
        has_full_width_qk_norm=spec.qk_norm == "width",
        gate_activation=resolve_activation(spec.activation) if spec.is_gated_mlp else None,
        has_bias=spec.relative_bias is not None,
    )


def make_norm(spec: BackboneSpec, parameters: Mapping[str, Array], path: str) -> NormWeights | None:
    """Return a norm whose parameters are there; None if the model has no such norm."""
    weight, bias = _optional_float32(parameters, f"{path}.weight"), _optional_float32(parameters, f"{path}.bias")
    if spec.norm == "rms":
        return None if weight is None else NormWeights(weight + np.float32(spec.norm_offset), None, spec.norm_eps, True)
    if spec.norm_affine:
        return None if weight is None else NormWeights(weight, bias, spec.norm_eps, False)
    return NormWeights(None, None, spec.norm_eps, False) if _has_norm(spec, path) else None


def _has_norm(spec: BackboneSpec, path: str) -> bool:
    """Return whether a spec whose norms have no parameters has this one."""
    if path == "embed.norm":
        return spec.has_embed_norm
    if path == "norm":
        return spec.has_final_norm
    _, layer, name = path.split(".", 2)
    return name in list_layer_norms(spec, int(layer)) or (name.startswith("mixer.") and spec.qk_norm is not None)


def _optional_float32(parameters: Mapping[str, Array], name: str) -> Array | None:
    return to_float32(parameters[name]) if name in parameters else None


def find_unsupported(spec: BackboneSpec) -> str | None:
    """Return what the C code does not support of a spec, in words; None if it runs it."""
    if spec.norm_order == "post" and (spec.has_final_norm or not spec.has_first_norm):
        return "a final norm after post-norm layers"
    if spec.local_rope is not None and spec.rope is not None and spec.local_rope.interleaved != spec.rope.interleaved:
        return "two kinds of rotary pairs"
    if spec.has_sinks:
        return "attention sinks"
    if spec.divides_scale_by_layer:
        return "a scale of attention for every layer"
    if resolve_activation(spec.activation) not in ACTIVATION_CODES:
        return f"the activation {spec.activation}"
    return None
