"""What a family says of itself, and the view of config.json that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from cenote.errors import LoadError
from cenote.layers.backbone import Backbone
from cenote.layers.spec import BackboneSpec, HeadSpec, RopeSpec
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import WeightTable


class MissingKey(LoadError, AttributeError):
    """config.json lacks what the architecture needs; also an AttributeError, so that hasattr works."""


class HFConfig:
    """config.json as attributes; asking for a key that is not there says so in one line."""

    def __init__(self, values: Mapping[str, Any], source: str = "config.json") -> None:
        self.values = dict(values)
        self.source = source

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__.get("values", {})[name]
        except KeyError:
            source = self.__dict__.get("source", "config.json")
            raise MissingKey(f"{source} has no {name!r}, which this architecture needs") from None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key that may be missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def with_defaults(self, **defaults: Any) -> HFConfig:
        """The same with what missing keys mean to Transformers; a key that is null stays null."""
        return HFConfig({**defaults, **self.values}, self.source)

    def sub_config(self, name: str, **defaults: Any) -> HFConfig:
        """A config inside this one, with what missing keys of it mean."""
        inside = self.values.get(name)
        if not isinstance(inside, Mapping):
            raise MissingKey(f"{self.source} has no {name!r}, which this architecture needs")
        return HFConfig({**defaults, **inside}, f"{self.source}: {name}")

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A classifier of the family and where its weights lie."""

    spec: HeadSpec
    weights: WeightTable  # our names: head.dense, head.norm, head.classifier
    alternative_weights: tuple[WeightTable, ...] = ()  # the same weights under the names of other programs
    applies_activation: bool = True  # False: its logits are the answer unless a request asks otherwise
    logit_mean: float | None = None  # subtracted from its logits unless the pooler config names another


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProjection:
    """Linear layers, and an activation between them, from a token's state to its vector; sizes as stored."""

    weights: tuple[str, ...]  # the layers' names in the checkpoint, first to last
    activation: str | None = None
    alternative_weights: tuple[tuple[str, ...], ...] = ()  # the same layers under the names of other programs
    is_optional: bool = False  # where a checkpoint has none, a token's state is its vector


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapters:
    """Adapters among the weights, stacked: of task t, a weight is original + up[t] @ down[t] * scaling."""

    tasks: tuple[str, ...]  # in the order in which they are stacked
    scaling: float
    # our parameter -> `down` [tasks, rank, columns] and `up` [tasks, rows, rank] in the checkpoint; `*` is the layer
    matrices: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model as data: one backbone, the table of its weights, its default pooling and its classifiers."""

    backbone: BackboneSpec
    weights: WeightTable
    pooling: str = "LAST"  # the method used when neither a flag nor Sentence Transformers files say
    alternative_weights: tuple[WeightTable, ...] = ()  # the same weights under the names of other programs
    prefixes: tuple[str, ...] = ("model.", "")  # what may stand before every name of the backbone
    unused_weights: tuple[str, ...] = ()  # patterns of checkpoint names that no task needs
    sequence_head: Head | None = None
    token_head: Head | None = None
    reward_head: Head | None = None  # a value for every token
    masked_head: Head | None = None  # from states to the vocabulary
    defaults_to_mlm: bool = True  # what a checkpoint with that head is for, unless told; False: embeddings
    adapters: StoredAdapters | None = None
    default_adapters: tuple[str, ...] = ()  # the first that the checkpoint has is used when a request names none
    projection: StoredProjection | None = None  # of embeddings, stored among the weights of the backbone
    late_interaction_defaults: Mapping[str, Any] | None = (
        None  # of Stanford's ColBERTs, what artifact.metadata may leave out
    )
    pooling_start_token: str | None = None  # what a prompt says up to this mark is read but not pooled
    pairs_with_separator: bool = True  # a cross-encoder reads query [SEP] document, not their concatenation
    score_template: str | None = None  # the built-in text around query and document that a reranker was trained with
    pair_suffix_ids: tuple[int, ...] = ()  # token ids behind the text that a template makes of a pair
    vision: VisionSpec | None = None  # of models that read images
    backbone_class: Callable[..., Backbone] = Backbone  # where what joins text and images is odd as well
    projected_size: int | None = None  # of the states that come out of it, where that is not hidden_size
    make_embedding: Callable[[BackboneSpec], nn.Module] | None = None  # odd parts, in the family's own file
    make_mixer: Callable[[BackboneSpec, int], nn.Module] | None = None
    make_mlp: Callable[[BackboneSpec, int], nn.Module] | None = None

    @property
    def output_size(self) -> int:
        return self.projected_size or self.backbone.hidden_size

    @property
    def weight_tables(self) -> tuple[WeightTable, ...]:
        """Every way in which checkpoints name these weights."""
        return (self.weights, *self.alternative_weights)


def make_linear_head(
    name: str, *, bias: bool | None = True, pooling: str | None = None, applies_activation: bool = True
) -> Head:
    """The plainest classifier: one linear layer of that name."""
    return Head(
        spec=HeadSpec(bias=bias, pooling=pooling),
        weights={"head.classifier": name},
        applies_activation=applies_activation,
    )


def make_dense_head(dense: str, classifier: str, *, full_head_per_token: bool = False) -> Head:
    """BERT's way: the first token's state through a dense layer and tanh, then one linear layer."""
    return Head(
        spec=HeadSpec(pooling="CLS", has_dense=True, full_head_per_token=full_head_per_token),
        weights={"head.dense": dense, "head.classifier": classifier},
    )


def rope_from_config(
    config: HFConfig,
    layer_type: str = "full_attention",
    *,
    theta: float = 10000.0,
    defaults: Mapping[str, Any] = MappingProxyType({}),  # what holds where config.json has no such dictionary
) -> RopeSpec:
    """Rotary positions of one kind of layers: from one dictionary today, one for each kind, or keys of their own."""
    scaling = config.get("rope_scaling", {})
    parameters = config.get("rope_parameters", {} if scaling else defaults)
    written = {**(parameters.get(layer_type) or parameters), **scaling}
    if kind := scaling.get("rope_type") or scaling.get("type"):
        written["rope_type"] = kind  # an override in older words comes before a newer file
    share = written.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    turned = config.get("rotary_emb_dim")
    if (share := share or config.get("rotary_emb_fraction", 1.0)) != 1.0:
        turned = int((config.get("head_dim") or config.hidden_size // config.num_attention_heads) * share)
    longest = config.get("max_position_embeddings")
    trained = config.get("original_max_position_embeddings") or written.get("original_max_position_embeddings")
    lengths = {"max_position_embeddings": longest, "original_max_position_embeddings": trained or longest}
    return RopeSpec(
        theta=written.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base", theta),
        rotary_dim=turned,
        interleaved=config.get("rotary_emb_interleaved", False),
        scaling={**written, **lengths},
    )


def sliding_window_layers(config: HFConfig) -> tuple[bool, ...]:
    """Which layers see only a window: listed today, before that all from some layer on."""
    if "layer_types" in config:
        return tuple(kind == "sliding_attention" and config.sliding_window is not None for kind in config.layer_types)
    in_use = config.get("use_sliding_window", False) and "sliding_window" in config
    first = config.get("max_window_layers", 28) if in_use else config.num_hidden_layers
    return tuple(layer >= first for layer in range(config.num_hidden_layers))
