"""The vocabulary in which a family describes its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: which dimensions turn, and how fast."""

    theta: float = 10000.0
    rotary_dim: int | None = None  # rotated dimensions of a head; all of them when unset
    interleaved: bool = False  # neighbours turn together, not the first half against the second
    scaling: Mapping[str, Any] | None = None  # as in config.json: rope_type, factor, ...
    mrope_axes: tuple[
        int, ...
    ] = ()  # for every pair of dimensions, which of several positions turns it; empty: there is one
    shared_frequencies: bool = False  # every axis turns its pairs at the same speeds, from the fastest on


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeBiasSpec:
    """What attention adds for the distance between two tokens: learned in buckets, or straight lines (ALiBi)."""

    num_buckets: int = 0  # 0: straight lines, one slope for each head
    max_distance: int = 128  # all that is farther shares the last bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpec:
    """One transformer in data. A new field is for something that two families share."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None  # num_heads when unset
    head_dim: int | None = None  # hidden_size / num_heads when unset
    max_positions: int = 512

    # embeddings
    num_learned_positions: int = 0  # rows of the position table; 0 is no table
    position_offset: int = 0
    num_token_types: int = 0
    embedding_size: int | None = None  # of the tables, where a projection leads from it to hidden_size
    embed_scale: float = 1.0
    has_embed_norm: bool = False

    # attention
    causal: bool = False
    rope: RopeSpec | None = None
    local_rope: RopeSpec | None = None  # for local layers; `rope` when unset
    local_layers: tuple[bool, ...] = ()  # which layers see only a window
    window: int | None = None  # the farthest distance a local layer sees, inclusive
    relative_bias: RelativeBiasSpec | None = None
    scale: float | None = None  # of the products of queries and keys; 1 / sqrt(head size) when unset
    softcap: float | None = None  # the products never grow past this
    qk_norm: Literal["head", "width"] | None = None  # of every query and key head, or over all heads at once
    qkv_bias: bool = False
    out_bias: bool = False

    # mlp
    activation: str = "gelu"
    is_gated_mlp: bool = False  # act(gate) * up; `up` holds both, gate first
    mlp_bias: bool = False

    # norms
    norm: Literal["layer", "rms"] = "layer"
    # before each half of a block, after its sum, both before and after each half, or only after each half
    norm_order: Literal["pre", "post", "sandwich", "output"] = "pre"
    norm_eps: float = 1e-12
    norm_bias: bool = True
    norm_affine: bool = True  # False: no weights at all
    norm_offset: float = 0.0  # added to the weight of an RMS norm
    has_first_norm: bool = True  # whether layer 0 norms what the embedding already normed
    has_final_norm: bool = True
    residual_scale: float = 1.0  # on what each half of a block adds

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_key_value_heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, not a number of 1 or more")
        if self.local_layers and len(self.local_layers) != self.num_layers:
            raise ValueError(f"{len(self.local_layers)} layer types for {self.num_layers} layers")

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def num_key_value_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def is_local(self, layer: int) -> bool:
        return bool(self.local_layers) and self.local_layers[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """A classifier over pooled states: optional dense, activation and norm, then one linear layer."""

    pooling: str | None = None  # the method it was trained with; the family's default when unset
    has_dense: bool = False
    dense_bias: bool = True
    dense_size: int | None = None  # of what it gives; hidden_size when unset
    dense_activation: str = "tanh"
    has_norm: bool = False
    norm_eps: float = 1e-5
    norm_bias: bool = True
    bias: bool | None = True  # None: as the checkpoint has it
    pool_after_dense: bool = False  # all but the last layer see every token, and pooling comes after them
    full_head_per_token: bool = False  # token_classify uses all of it, not only the last layer
    num_labels: int | None = None  # where no config.json says
    step_tag_id: int | None = None  # the token whose rows are the answer, where a text is judged step by step
