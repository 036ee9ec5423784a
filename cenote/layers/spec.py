"""Specs: dataclasses in which a model family describes its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cenote.protocol.spans import SpanHeadSpec


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
    divides_scale_by_layer: bool = False  # by 1 in the first layer, by 2 in the second, and so on
    softcap: float | None = None  # soft limit of the attention scores (tanh)
    qk_norm: Literal["head", "width"] | None = None  # per head, or over the width of all heads
    qkv_bias: bool = False
    out_bias: bool = False
    has_sinks: bool = False  # one logit per head that takes part in the softmax

    # mlp
    activation: str = "gelu"
    is_gated_mlp: bool = False  # act(gate) * up; `up` holds both, gate first
    mlp_bias: bool = False
    down_bias: bool | None = None  # of the second projection, `down`; mlp_bias when unset

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

    def attention_scale(self, layer: int) -> float:
        """Return the factor of the attention scores of a layer."""
        scale = self.head_size**-0.5 if self.scale is None else self.scale
        return scale / (layer + 1) if self.divides_scale_by_layer else scale

    @property
    def has_down_bias(self) -> bool:
        return self.mlp_bias if self.down_bias is None else self.down_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """Sizes of the experts and options of the router."""

    num_experts: int
    top_k: int  # experts per token
    intermediate_size: int
    is_gated: bool = True  # act(gate) * up; `up` holds both, gate first
    swiglu_limit: float | None = None  # gate and up are clamped to it; None: they are not
    swiglu_alpha: float = 1.702  # of the clamped ones, (up + 1) * gate * sigmoid(alpha * gate)
    bias: bool = False  # in both layers of every expert
    out_bias: bool = False  # one bias added to the sum over experts

    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = False  # normalize the weights of the selected experts to a sum of 1
    routed_scaling_factor: float = 1.0  # multiplies the expert weights
    router_bias: bool = False
    has_correction_bias: bool = False  # a bias that affects the selection of experts but not their weights
    num_groups: int = 1  # groups of experts of equal size; experts are selected from the top_k_groups best ones
    top_k_groups: int = 1

    shared_intermediate_size: int = 0  # of the shared expert that every token uses; 0: none
    has_shared_gate: bool = False  # weight the shared expert by a sigmoid of the token


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Head dimensions and ranks, with the names of config.json."""

    qk_nope_head_dim: int  # dimensions of queries and keys without rotary embedding
    qk_rope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int  # size of the latent vector of keys and values
    q_lora_rank: int | None  # size of the latent vector of queries; None: queries are projected from the hidden state
    bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    channels: int
    state_size: int  # per channel
    dt_rank: int  # rank of the projection to dt
    conv_kernel_size: int  # in tokens
    bias: bool
    conv_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetSpec:
    num_key_heads: int
    num_value_heads: int  # a multiple of num_key_heads: adjacent heads share a query and key head
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int  # in tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    num_latents: int
    num_heads: int
    head_dim: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryHeadSpec(SpanHeadSpec):
    """Sizes of the layers, and which pairs of boundaries become candidates."""

    boundary_size: int
    candidate_size: int
    content_size: int | None  # of the mean of a candidate's words; None: it is not read
    mlp_size: int
    num_attention_layers: int  # of boundaries
    num_attention_heads: int
    attention_window: int  # boundaries to each side; 0: all
    num_mlp_layers: int
    num_candidate_layers: int
    num_label_layers: int
    num_candidate_heads: int  # of both
    scores_inside: bool  # the words of a candidate have scores too
    num_starts: int  # boundaries that candidates may start at, and as many that they may end at
    max_candidates: int
    min_candidates: int  # of each label
    abstention_threshold: float | None  # labels with a higher probability of no entity have none; None: not predicted
    temperature: float
