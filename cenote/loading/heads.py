"""Load the heads above a backbone: classifiers, projectors, SPLADE and bge-m3 heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from cenote.errors import LoadError
from cenote.layers.spec import HeadSpec
from cenote.loading.bge_m3 import load_linear
from cenote.loading.bge_m3_files import require_head_files
from cenote.loading.causal_lm_classifier import load_lm_head, make_classifier_weight
from cenote.loading.colbert import check_vector_size
from cenote.loading.head_layers import HeadLayers
from cenote.loading.model_description import ModelDescription
from cenote.loading.module_weights import load_dense, load_layer_norm, load_residual
from cenote.loading.sentence_transformers import DenseModule
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.loading.weight_loader import WeightLoader
from cenote.models.architecture import StoredProjection
from cenote.models.weight_table import DerivedWeight
from cenote.pooling.heads import (
    Classifier,
    GatedRewards,
    Heads,
    ModuleClassifier,
    SpladeHead,
    TokenWeights,
)
from cenote.pooling.layers import Layer, LayerFactory, LinearLayer, ResidualLayer, Sequential, TanhInt8
from cenote.pooling.ops import LAYER_NORM_EPS, Rows

# keys of config.json with which a language model scales or caps its logits
CHANGED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def load_heads(
    description: ModelDescription, weight_loader: WeightLoader, tokenizer: TokenizerFiles, layers: HeadLayers
) -> Heads:
    """Load the heads of a model; `layers` makes their layers."""
    if description.kind.value == "hybrid":
        return _load_bge_m3_heads(description, weight_loader, layers)
    projector, classifier = (
        load_projector(description, weight_loader, layers),
        _load_classifier(description, weight_loader, tokenizer, layers),
    )
    if description.kind.value == "sparse" and description.architecture.is_static:
        table = description.architecture
        size, sums = table.backbone.vocab_size, table.sums_repeated_tokens
        return Heads(splade=TokenWeights(layers.ops, description.num_labels, table_size=size, sums=sums))
    if description.kind.value == "sparse":
        assert classifier is not None, "a SPLADE model has a masked-language-model head"
        splade = description.sentence_transformers.splade
        if splade is None:
            return Heads(splade=SpladeHead(layers.ops, classifier))
        return Heads(splade=SpladeHead(layers.ops, classifier, strategy=splade.strategy, num_logs=splade.num_logs))
    stored = description.architecture.projection
    token_projector = None if stored is not None and stored.is_pooler else projector
    if (of_tokens := description.architecture.token_projection) is not None:
        token_projector = Sequential(_load_stored_projection(description, weight_loader, of_tokens, layers))
    return Heads(
        projector=_add_quantizer(description, projector, layers),
        token_projector=token_projector,
        classifier=classifier,
    )


def _add_quantizer(description: ModelDescription, projector: Layer | None, layers: LayerFactory) -> Layer | None:
    """Return the projector of sequence embeddings with the quantizer that follows it in the published pipeline."""
    if not description.sentence_transformers.has_int8_output:
        return projector
    quantizer = TanhInt8(layers.ops)
    return quantizer if projector is None else Sequential([projector, quantizer])


def _load_bge_m3_heads(description: ModelDescription, weight_loader: WeightLoader, layers: HeadLayers) -> Heads:
    sparse, colbert = require_head_files(description.checkpoint)
    size, dtype = description.architecture.backbone.hidden_size, description.head_dtype.value
    weights_of_tokens = load_linear(sparse, size, description.num_labels, layers, dtype)
    return Heads(
        projector=load_projector(description, weight_loader, layers),
        token_projector=load_linear(colbert, size, None, layers, dtype),
        classifier=Classifier(layers.ops, HeadSpec(), weights_of_tokens),
    )


def _load_classifier(
    description: ModelDescription, weight_loader: WeightLoader, tokenizer: TokenizerFiles, layers: HeadLayers
) -> Classifier | None:
    if description.kind.value == "causal":
        return _load_lm_classifier(description, weight_loader, layers)
    if description.kind.value == "sparse" and description.entry.kind == "causal":
        _check_plain_logits(description)
        return _load_lm_classifier(description, weight_loader, layers)
    head = description.head
    if head is None:
        return None
    if description.sentence_transformers.score_head is not None:
        modules = _load_modules(description, *_projector_input_size(description, []), layers)
        return ModuleClassifier(layers.ops, modules)
    hidden_size, dtype = description.architecture.backbone.hidden_size, description.head_dtype.value
    if description.kind.value in ("masked", "sparse"):
        # as large as the vocabulary, and often tied to the embeddings
        dtype = description.dtype.value
    if (labels := description.token_labels) is not None:
        table_name = _embedding_table_name(weight_loader)
        weight = make_classifier_weight(labels, weight_loader, table_name, tokenizer.tokenizer)
        return Classifier(layers.ops, head.spec, layers.make_linear(layers.put(weight, dtype), None))
    table = weight_loader.choose_table((head.weights, *head.alternative_weights))
    last = table.get("head.classifier") or table["head.classifier.weight"]
    last = last.source_names[0] if isinstance(last, DerivedWeight) else last
    assert isinstance(last, str), "a classifier is one matrix"
    last = last.removesuffix(".weight")
    if not weight_loader.has(f"{last}.weight"):
        raise LoadError(
            f"{description.checkpoint.folder}: {description.entry.name} has no classification head "
            f"(no {last}.weight in the checkpoint); "
            "use convert='embed', or make a classifier of LM head tokens: "
            'hf_overrides={"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}'
        )
    spec = head.spec if head.spec.bias is not None else replace(head.spec, bias=weight_loader.has(f"{last}.bias"))
    shapes = _list_shapes(spec, hidden_size, description.num_labels)
    return _make_classifier(spec, layers.load_parameters(weight_loader, table, shapes, dtype), layers)


def _list_shapes(spec: HeadSpec, hidden_size: int, num_labels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a head, by their paths in weight tables."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add_linear(path: str, size_in: int, size_out: int, *, has_bias: bool) -> None:
        shapes[f"{path}.weight"] = (size_out, size_in)
        if has_bias:
            shapes[f"{path}.bias"] = (size_out,)

    size = spec.dense_size or hidden_size
    if (gating := spec.gating) is not None:
        num_labels = gating.num_objectives
        shapes |= {"head.transform": (num_labels, num_labels), "head.gate_scale": (1,)}
    if spec.has_dense:
        add_linear("head.dense", hidden_size, size, has_bias=spec.dense_bias)
    if spec.has_norm:
        shapes["head.norm.weight"] = (size,)
        if spec.norm_bias:
            shapes["head.norm.bias"] = (size,)
    add_linear("head.classifier", size, num_labels, has_bias=bool(spec.bias))
    if gating is not None:
        sizes = [hidden_size, *[gating.hidden_size] * gating.num_layers, num_labels]
        for index, (size_in, size_out) in enumerate(pairwise(sizes)):
            add_linear(f"head.gate.{index}", size_in, size_out, has_bias=True)
    return shapes


def _make_classifier(spec: HeadSpec, parameters: Mapping[str, Rows], layers: LayerFactory) -> Classifier:
    def make_linear(path: str, activation: str | None = None) -> LinearLayer:
        return layers.make_linear(parameters[f"{path}.weight"], parameters.get(f"{path}.bias"), activation)

    classifier = make_linear("head.classifier")
    if (gating := spec.gating) is not None:
        gate = [make_linear(f"head.gate.{index}", "relu") for index in range(gating.num_layers)]
        return GatedRewards(
            layers.ops,
            spec,
            classifier,
            transform=parameters["head.transform"],
            gate=[*gate, make_linear(f"head.gate.{gating.num_layers}")],
            gate_scale=parameters["head.gate_scale"],
        )
    norm: Layer | None = None
    if spec.has_norm:
        weight, bias = parameters["head.norm.weight"], parameters.get("head.norm.bias")
        norm = layers.make_layer_norm(weight, bias, spec.norm_eps)
    dense = make_linear("head.dense", spec.dense_activation) if spec.has_dense else None
    return Classifier(layers.ops, spec, classifier, dense=dense, norm=norm)


def _load_lm_classifier(description: ModelDescription, weight_loader: WeightLoader, layers: HeadLayers) -> Classifier:
    """Return the LM head as a classifier; `returned_token_ids` selects its logits."""
    weight = load_lm_head(weight_loader, _embedding_table_name(weight_loader))
    token_ids = description.plan.defaults.returned_token_ids or ()
    if beyond := [token for token in token_ids if not 0 <= token < len(weight)]:
        raise LoadError(f"returned_token_ids: token id {beyond[0]} is out of range; the LM head has {len(weight)} rows")
    dtype = description.dtype.value
    return Classifier(layers.ops, HeadSpec(bias=False), layers.make_linear(layers.put(weight, dtype), None))


def _check_plain_logits(description: ModelDescription) -> None:
    """Raise LoadError if the language model changes its logits, which changes the weights of a SPLADE vector."""
    for key in CHANGED_LOGITS:
        if (value := description.config.get(key)) is not None:
            raise LoadError(
                f"{description.config.source}: {key} is {value!r}, which is not supported in a SPLADE model; "
                "use convert='embed' to embed with its backbone"
            )


def _embedding_table_name(weight_loader: WeightLoader) -> str:
    """Return the name of the embedding table, which is often tied to the LM head."""
    name = weight_loader.table["embed.tokens"]
    assert isinstance(name, str), "a vocabulary is one matrix"
    return name


def load_projector(
    description: ModelDescription, weight_loader: WeightLoader | None, layers: LayerFactory
) -> Layer | None:
    if not {"embed", "token_embed"} & set(description.plan.tasks):
        return None
    projection, stored = description.architecture.projection, list[LinearLayer]()
    if projection is not None and weight_loader is not None:
        stored = _load_stored_projection(description, weight_loader, projection, layers)
    modules = _load_modules(description, *_projector_input_size(description, stored), layers)
    return Sequential([*stored, *modules]) if stored or modules else None


def _load_modules(description: ModelDescription, size_in: int | None, source: str, layers: LayerFactory) -> list[Layer]:
    """Load the Dense and LayerNorm modules; `size_in` and `source`: the size of their input and what produces it."""
    dtype, loaded = description.head_dtype.value, list[Layer]()
    for step in description.sentence_transformers.projector:
        key, size = ("in_features", step.in_features) if isinstance(step, DenseModule) else ("dimension", step.size)
        file = f"{step.folder}/config.json"
        if size_in is not None and size != size_in:
            raise LoadError(
                f"{description.checkpoint.folder / file}: {key} is {size}, but the input from {source} is {size_in}"
            )
        size_in, source = step.out_features if isinstance(step, DenseModule) else size, file
        if not isinstance(step, DenseModule):
            norm_weight, norm_bias = load_layer_norm(description.checkpoint, step)
            weight, bias = layers.put(norm_weight, dtype), layers.put(norm_bias, dtype)
            loaded.append(layers.make_layer_norm(weight, bias, LAYER_NORM_EPS))
            continue
        dense_weight, dense_bias = load_dense(description.checkpoint, step)
        bias = None if dense_bias is None else layers.put(dense_bias, dtype)
        layer: Layer = layers.make_linear(layers.put(dense_weight, dtype), bias, step.activation)
        if step.has_residual:
            matrix = load_residual(description.checkpoint, step)
            projection = None if matrix is None else layers.make_linear(layers.put(matrix, dtype), None)
            layer = ResidualLayer(layer, projection)
        loaded.append(layer)
    return loaded


def _projector_input_size(description: ModelDescription, stored: Sequence[LinearLayer]) -> tuple[int | None, str]:
    """Return the input size of the first Sentence Transformers layer (None: unknown) and where it comes from."""
    if stored:
        return stored[-1].out_features, "the projection in the checkpoint"
    if description.entry.uses_transformers:
        return None, ""  # only the Transformers library knows its hidden size
    pools = not {"embed", "classify"}.isdisjoint(description.plan.tasks)
    methods = description.plan.seq_pooling_types.value if pools else ("",)
    size = description.architecture.output_size
    if len(methods) == 1:
        return size, "the backbone"
    return size * len(methods), f"concatenated {' and '.join(methods)} pooling"


def _load_stored_projection(
    description: ModelDescription, weight_loader: WeightLoader, projection: StoredProjection, layers: LayerFactory
) -> list[LinearLayer]:
    """Load the projection layers stored with the backbone weights, with their stored sizes."""
    if description.architecture.late_interaction_defaults is not None and description.sentence_transformers.projector:
        return []  # PyLate stores the projection as a Dense module instead
    candidates = (projection.weights, *projection.alternative_weights)
    names = next((names for names in candidates if weight_loader.has(f"{names[0]}.weight")), projection.weights)
    if projection.is_optional and not weight_loader.has(f"{names[0]}.weight"):
        return []
    dtype, loaded = description.head_dtype.value, list[LinearLayer]()
    for name in names:
        weight = layers.put(weight_loader.read(f"{name}.weight"), dtype)
        bias: Rows | None = None
        if weight_loader.has(f"{name}.bias"):
            bias = layers.put(weight_loader.read(f"{name}.bias"), dtype)
        activation = projection.activation if projection.is_pooler or name != names[-1] else None
        loaded.append(layers.make_linear(weight, bias, activation))
    if description.architecture.late_interaction_defaults is not None:
        check_vector_size(description.checkpoint, loaded[-1].out_features)
    return loaded


def with_output_sizes(description: ModelDescription, heads: Heads) -> ModelDescription:
    """Return the description with the embedding size of the stored projection, which is known only after loading."""
    layers = heads.token_projector
    if description.architecture.projection is None or not isinstance(layers, Sequential):
        return description
    size = getattr(layers.layers[-1], "out_features", description.plan.matryoshka.full_size)
    matryoshka = replace(description.plan.matryoshka, full_size=size)
    return replace(description, plan=replace(description.plan, matryoshka=matryoshka))
