"""`Architecture`, the description of a model, and `HFConfig`, the view of config.json it is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tokenizers import Tokenizer

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec, HeadSpec, RopeSpec
from cenote.models.text_format import PairLengths, TextFormat
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import WeightTable
from cenote.protocol.spans import SpanHeadSpec

if TYPE_CHECKING:
    from torch import nn

    from cenote.layers.backbone import Backbone

Params = ParamSpec("Params")
Made = TypeVar("Made", covariant=True)


class MissingKey(LoadError, AttributeError):
    """A required key of config.json is missing; also an AttributeError, so that hasattr works."""


class HFConfig:
    """config.json with attribute access; a missing key raises MissingKey."""

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
        """Return the value of a key, or `default` if it is missing or null."""
        value = self.values.get(name)
        return default if value is None else value

    def with_defaults(self, **defaults: Any) -> HFConfig:
        """Return a copy with defaults for missing keys; a key that is null stays null."""
        return HFConfig({**defaults, **self.values}, self.source)

    def sub_config(self, name: str, **defaults: Any) -> HFConfig:
        """Return a nested config, with defaults for its missing keys."""
        nested = self.values.get(name)
        if not isinstance(nested, Mapping):
            raise MissingKey(f"{self.source} has no {name!r}, which this architecture needs")
        return HFConfig({**defaults, **nested}, f"{self.source}: {name}")

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A classification head and the names of its weights."""

    spec: HeadSpec
    weights: WeightTable  # for head.dense, head.norm, head.classifier
    alternative_weights: tuple[WeightTable, ...] = ()  # tables for other checkpoint formats
    applies_activation: bool = True  # False: return raw logits unless a request sets use_activation
    activation: str | None = None  # of the scores; None: that of config.json, else by the number of labels
    logit_mean: float | None = None  # subtracted from the logits unless the pooler config sets another value


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProjection:
    """Linear layers (with an activation between them) that project hidden states to embeddings; sizes as stored."""

    weights: tuple[str, ...]  # names of the layers in the checkpoint, in order
    activation: str | None = None
    alternative_weights: tuple[tuple[str, ...], ...] = ()  # names in other checkpoint formats
    is_pooler: bool = False  # of the pooled state of a sequence only; the activation follows every layer
    is_optional: bool = False  # if the checkpoint has none, hidden states are the embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapters:
    """LoRA adapters stored in the checkpoint, stacked by task: weight = original + up[t] @ down[t] * scaling."""

    tasks: tuple[str, ...]  # in stacking order
    scaling: float
    # parameter -> names of `down` [tasks, rank, columns] and `up` [tasks, rows, rank]; `*` is the layer
    matrices: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdapters:
    """PEFT adapters of several tasks in one file of the checkpoint; one is merged into the weights at load."""

    folder: str
    tasks: tuple[str, ...]  # the default first


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFormat:
    """What the processor of a late-interaction model writes around a query."""

    prompt: str
    suffix_tokens: tuple[str, ...]  # from the vocabulary; each has an embedding that is scored like those of the text


@dataclass(frozen=True, slots=True)
class TorchFactory(Generic[Params, Made]):
    """A function that makes modules no spec describes: it imports them, and with them torch, when it is called."""

    kind: str  # what they are, in words for a user
    make: Callable[Params, Made]
    beyond: int  # positions: a backbone of no more has the plain modules instead

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Made:
        return self.make(*args, **kwargs)


def makes(kind: str, *, beyond: int = 0) -> Callable[[Callable[Params, Made]], TorchFactory[Params, Made]]:
    """Declare what the modules are that a function makes, e.g. "mixture of experts"."""

    def declare(make: Callable[Params, Made]) -> TorchFactory[Params, Made]:
        return TorchFactory(kind, make, beyond)

    return declare


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Description of a model: backbone, weight tables, default pooling and heads."""

    backbone: BackboneSpec
    weights: WeightTable
    pooling: str = "LAST"  # used if neither options nor Sentence Transformers files set one
    normalize: bool = True  # embeddings, if neither options nor Sentence Transformers files decide
    alternative_weights: tuple[WeightTable, ...] = ()  # tables for other checkpoint formats
    prefixes: tuple[str, ...] = ("model.", "")  # possible prefixes of the backbone's names in the checkpoint
    unused_weights: tuple[str, ...] = ()  # patterns of checkpoint names that no task needs
    sequence_head: Head | None = None
    token_head: Head | None = None
    reward_head: Head | None = None  # one value per token
    masked_head: Head | None = None  # hidden states to vocabulary logits
    span_head: SpanHeadSpec | None = None  # scores spans of words against the labels of a request
    span_weights: WeightTable = field(default_factory=dict)  # of the span head
    defaults_to_mlm: bool = True  # default use of a checkpoint with masked_head; False: embeddings
    language_model: Architecture | None = None  # variant for LM logits, if the backbone alone has none
    adapters: StoredAdapters | None = None
    default_adapters: tuple[str, ...] = ()  # the first one in the checkpoint is used if a request names none
    projection: StoredProjection | None = None  # of embeddings, stored with the backbone weights
    token_projection: StoredProjection | None = None  # of token embeddings only
    task_adapters: TaskAdapters | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; those of the files come first
    default_prompt_name: str | None = None  # one of `prompts`, for texts without one
    late_interaction_defaults: Mapping[str, Any] | None = None  # of Stanford ColBERT keys missing in artifact.metadata
    query_format: QueryFormat | None = None  # of a late-interaction model; its files come first
    text_format: TextFormat | None = None  # of texts, with or without images
    max_length: int | None = None  # of the model's own code; Sentence Transformers files come first
    prompt_end: str | None = None  # text between prompt and answer; the pooling reads the state of its first token
    pooling_start_token: str | None = None  # tokens up to and including it are attended to but not pooled
    appends_eos: bool = False  # inputs end with the EOS token, whatever the tokenizer files say
    doubts: tuple[str, ...] = ()  # what config.json leaves open, one line each
    pairs_with_separator: bool = True  # cross-encoder input is query [SEP] document; False: their concatenation
    score_template: str | None = None  # name of the built-in score template the reranker was trained with
    adds_special_tokens: bool = True  # False: texts are tokenized without the tokenizer's special tokens
    add_tokens: Callable[[Tokenizer], None] | None = None  # those that files leave to the model's own code
    required_tokens: tuple[str, ...] = ()  # of the vocabulary; the score template has them
    has_plain_tokenizer: bool = False  # tokenizer.json is used as it is, whatever class and tokens other files name
    sums_repeated_tokens: bool = False  # static token weights: a token that occurs twice has twice its weight
    drops_unknown_tokens: bool = False  # the unknown token is left out of the pooling
    pair_lengths: PairLengths | None = None  # an encoder reads the document, a decoder the rest of the score template
    pair_suffix_ids: tuple[int, ...] = ()  # token ids appended to a templated pair
    padded_length: int | None = None  # texts are padded to this length, since the model was trained that way
    vision: VisionSpec | None = None  # None: text only
    projected_size: int | None = None  # size of the backbone output if it is not hidden_size
    # modules that no spec describes; None: the plain ones
    backbone_class: TorchFactory[..., Backbone] | None = None  # takes the spec and the three factories below
    make_embedding: TorchFactory[[BackboneSpec], nn.Module] | None = None
    make_mixer: TorchFactory[[BackboneSpec, int], nn.Module] | None = None
    make_mlp: TorchFactory[[BackboneSpec, int], nn.Module] | None = None

    @property
    def output_size(self) -> int:
        return self.projected_size or self.backbone.hidden_size

    @property
    def needs_torch(self) -> str | None:
        """Return what only the torch runtime computes, in words for a user; None for a plain transformer of specs."""
        factories = (self.backbone_class, self.make_embedding, self.make_mixer, self.make_mlp)
        kinds = [factory.kind for factory in factories if factory is not None]
        kinds += ["vision tower"] if self.vision is not None else []
        kinds += ["entity head"] if self.span_head is not None else []
        return ", ".join(dict.fromkeys(kinds)) or None

    def with_max_positions(self, max_positions: int) -> Architecture:
        """Return the architecture for inputs of up to so many tokens."""
        mixer = self.make_mixer if self.make_mixer is not None and max_positions > self.make_mixer.beyond else None
        return replace(self, backbone=replace(self.backbone, max_positions=max_positions), make_mixer=mixer)

    @property
    def is_static(self) -> bool:
        """Whether the model is a table of token embeddings."""
        return self.backbone.num_layers == 0

    @property
    def reads_texts(self) -> bool:
        """Whether the model has a text encoder and a tokenizer."""
        return self.vision is None or self.vision.image_spec.text_model is None

    @property
    def weight_tables(self) -> tuple[WeightTable, ...]:
        """Return the tables of all checkpoint formats."""
        return (self.weights, *self.alternative_weights)


def make_linear_head(
    name: str, *, bias: bool | None = True, pooling: str | None = None, applies_activation: bool = True
) -> Head:
    """Return a head of one linear layer."""
    return Head(
        spec=HeadSpec(bias=bias, pooling=pooling),
        weights={"head.classifier": name},
        applies_activation=applies_activation,
    )


def make_dense_head(dense: str, classifier: str, *, full_head_per_token: bool = False) -> Head:
    """Return a BERT head: dense layer and tanh on the CLS state, then a linear layer."""
    return Head(
        spec=HeadSpec(pooling="CLS", has_dense=True, full_head_per_token=full_head_per_token),
        weights={"head.dense": dense, "head.classifier": classifier},
    )


def rope_from_config(
    config: HFConfig,
    layer_type: str = "full_attention",
    *,
    theta: float = 10000.0,
    defaults: Mapping[str, Any] = MappingProxyType({}),  # used if config.json has no rope_parameters
) -> RopeSpec:
    """Return the rope of a layer type from rope_parameters (flat or by layer type), rope_scaling or top-level keys."""
    scaling = config.get("rope_scaling", {})
    parameters = config.get("rope_parameters", {} if scaling else defaults)
    written = {**(parameters.get(layer_type) or parameters), **scaling}
    if kind := scaling.get("rope_type") or scaling.get("type"):
        written["rope_type"] = kind  # rope_scaling takes precedence over rope_parameters: it may come from hf_overrides
    fraction = written.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    rotary_dim = config.get("rotary_emb_dim")
    if (fraction := fraction or config.get("rotary_emb_fraction", 1.0)) != 1.0:
        rotary_dim = int((config.get("head_dim") or config.hidden_size // config.num_attention_heads) * fraction)
    max_positions = config.get("max_position_embeddings")
    trained = config.get("original_max_position_embeddings") or written.get("original_max_position_embeddings")
    lengths = {"max_position_embeddings": max_positions, "original_max_position_embeddings": trained or max_positions}
    return RopeSpec(
        theta=written.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base", theta),
        rotary_dim=rotary_dim,
        interleaved=config.get("rotary_emb_interleaved", False),
        scaling={**written, **lengths},
    )


def sliding_window_layers(config: HFConfig) -> tuple[bool, ...]:
    """Return which layers have sliding-window attention: by `layer_types`, else all from `max_window_layers` on."""
    if "layer_types" in config:
        return tuple(kind == "sliding_attention" and config.sliding_window is not None for kind in config.layer_types)
    in_use = config.get("use_sliding_window", False) and "sliding_window" in config
    first = config.get("max_window_layers", 28) if in_use else config.num_hidden_layers
    return tuple(layer >= first for layer in range(config.num_hidden_layers))
