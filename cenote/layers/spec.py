"""Specs: dataclasses in which a model family describes its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding: rotated dimensions and frequencies."""

    theta: float = 10000.0
    rotary_dim: int | None = None  # rotated dimensions of a head; all of them when unset
    interleaved: bool = False  # pairs are (2i, 2i + 1) instead of (i, i + half)
    scaling: Mapping[str, Any] | None = None  # as in config.json: rope_type, factor, ...
    mrope_axes: tuple[int, ...] = ()  # for every pair of dimensions, its position axis; empty: one position per token
    shared_frequencies: bool = False  # every axis has the same frequencies, from the highest


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBiasSpec:
    """Relative position bias of attention: learned buckets (T5) or linear slopes (ALiBi)."""

    num_buckets: int = 0  # 0: ALiBi, one slope per head
    max_distance: int = 128  # larger distances share the last bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpec:
    """Description of a transformer. A new field is only for an option that two families share."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None  # num_heads when unset
    head_dim: int | None = None  # hidden_size / num_heads when unset
    max_positions: int = 512

    # embeddings
    num_learned_positions: int = 0  # rows of the position table; 0: no table
    position_offset: int = 0
    num_token_types: int = 0
    embedding_size: int | None = None  # of the tables, if it differs from hidden_size; a projection follows
    embed_scale: float = 1.0
    has_embed_norm: bool = False

    # attention
    causal: bool = False
    rope: RopeSpec | None = None
    local_rope: RopeSpec | None = None  # for local layers; `rope` when unset
    local_layers: tuple[bool, ...] = ()  # which layers use the sliding window
    window: int | None = None  # largest distance in a local layer, inclusive
    relative_bias: RelativeBiasSpec | None = None
    scale: float | None = None  # of the attention scores; 1 / sqrt(head size) when unset
    softcap: float | None = None  # soft limit of the attention scores (tanh)
    qk_norm: Literal["head", "width"] | None = None  # per head, or over the width of all heads
    qkv_bias: bool = False
    out_bias: bool = False

    # mlp
    activation: str = "gelu"
    is_gated_mlp: bool = False  # act(gate) * up; `up` holds both, gate first
    mlp_bias: bool = False

    # norms
    norm: Literal["layer", "rms"] = "layer"
    # norm before each sublayer, after its residual add, before and after each sublayer, or only on its output
    norm_order: Literal["pre", "post", "sandwich", "output"] = "pre"
    norm_eps: float = 1e-12
    norm_bias: bool = True
    norm_affine: bool = True  # False: no weight and no bias
    norm_offset: float = 0.0  # added to the weight of an RMS norm
    has_first_norm: bool = True  # False: layer 0 has no input norm, since the embedding is normalized
    has_final_norm: bool = True
    residual_scale: float = 1.0  # multiplies the output of each sublayer before the residual add

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_key_value_heads",
        ):
            value = getattr(self, name)
            minimum = 0 if name == "num_layers" else 1  # a table of embeddings has no layers
            if not isinstance(value, int) or value < minimum:
                raise ValueError(f"invalid {name}={value!r}; expected an integer of {minimum} or more")
        if self.local_layers and len(self.local_layers) != self.num_layers:
            raise ValueError(f"got {len(self.local_layers)} layer types for {self.num_layers} layers")

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def num_key_value_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def is_local(self, layer: int) -> bool:
        return bool(self.local_layers) and self.local_layers[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatingSpec:
    """Rewards of several objectives, summed with weights that an MLP computes from another state."""

    num_objectives: int
    num_layers: int  # hidden layers of the MLP
    hidden_size: int
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """Classification head over pooled states: optional dense, activation and norm, then one linear layer."""

    pooling: str | None = None  # the method it was trained with; the family's default when unset
    has_dense: bool = False
    dense_bias: bool = True
    dense_size: int | None = None  # output size; hidden_size when unset
    dense_activation: str = "tanh"
    has_norm: bool = False
    norm_eps: float = 1e-5
    norm_bias: bool = True
    bias: bool | None = True  # None: if the checkpoint has one
    pool_after_dense: bool = False  # all layers but the last run on every token, before pooling
    full_head_per_token: bool = False  # token_classify uses the whole head, not only the last layer
    num_labels: int | None = None  # if config.json does not define it
    softcap: float | None = None  # soft limit of the logits (tanh)
    gating: GatingSpec | None = None
    step_tag_id: int | None = None  # process reward models: the token whose rows are the step scores
