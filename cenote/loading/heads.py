"""Load the heads above a backbone: classifiers, projectors, SPLADE and bge-m3 heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.linear import Linear
from cenote.layers.spec import HeadSpec
from cenote.layers.torch_dtypes import to_tensor, to_torch_device, to_torch_dtype
from cenote.loading.bge_m3 import load_linear, make_linear
from cenote.loading.bge_m3_files import require_head_files
from cenote.loading.causal_lm_classifier import load_lm_head, make_classifier_weight
from cenote.loading.colbert import check_vector_size
from cenote.loading.model_description import ModelDescription
from cenote.loading.module_loader import load_module
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
    ResidualLayer,
    SpladeHead,
    TanhInt8,
    TokenWeights,
)

# keys of config.json with which a language model scales or caps its logits
CHANGED_LOGITS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def load_heads(description: ModelDescription, weight_loader: WeightLoader, tokenizer: TokenizerFiles) -> Heads:
    if description.kind.value == "hybrid":
        return _load_bge_m3_heads(description, weight_loader)
    projector, classifier = (
        load_projector(description, weight_loader),
        _load_classifier(description, weight_loader, tokenizer),
    )
    if description.kind.value == "sparse" and description.architecture.is_static:
        table = description.architecture
        return Heads(
            splade=TokenWeights(
                description.num_labels, table_size=table.backbone.vocab_size, sums=table.sums_repeated_tokens
            )
        )
    if description.kind.value == "sparse":
        assert classifier is not None, "a SPLADE model has a masked-language-model head"
        splade = description.sentence_transformers.splade
        if splade is None:
            return Heads(splade=SpladeHead(classifier))
        return Heads(splade=SpladeHead(classifier, strategy=splade.strategy, num_logs=splade.num_logs))
    stored = description.architecture.projection
    token_projector = None if stored is not None and stored.is_pooler else projector
    if (of_tokens := description.architecture.token_projection) is not None:
        token_projector = nn.Sequential(*_load_stored_projection(description, weight_loader, of_tokens))
    return Heads(
        projector=_add_quantizer(description, projector), token_projector=token_projector, classifier=classifier
    )


def _add_quantizer(description: ModelDescription, projector: nn.Module | None) -> nn.Module | None:
    """Return the projector of sequence embeddings with the quantizer that follows it in the published pipeline."""
    if not description.sentence_transformers.has_int8_output:
        return projector
    return TanhInt8() if projector is None else nn.Sequential(projector, TanhInt8())


def _load_bge_m3_heads(description: ModelDescription, weight_loader: WeightLoader) -> Heads:
    sparse, colbert = require_head_files(description.checkpoint)
    size = description.architecture.backbone.hidden_size
    dtype, device = to_torch_dtype(description.head_dtype.value), to_torch_device(description.device.value)
    with torch.device("meta"):
        classifier = Classifier(HeadSpec(), size, description.num_labels)
    classifier.classifier = load_linear(sparse, size, description.num_labels, dtype, device)
    return Heads(
        projector=load_projector(description, weight_loader),
        token_projector=load_linear(colbert, size, None, dtype, device),
        classifier=classifier,
    )


def _load_classifier(
    description: ModelDescription, weight_loader: WeightLoader, tokenizer: TokenizerFiles
) -> Classifier | None:
    if description.kind.value == "causal":
        return _load_lm_classifier(description, weight_loader)
    if description.kind.value == "sparse" and description.entry.kind == "causal":
        _check_plain_logits(description)
        return _load_lm_classifier(description, weight_loader)
    head = description.head
    if head is None:
        return None
    if description.sentence_transformers.score_head is not None:
        return ModuleClassifier(_load_modules(description, *_projector_input_size(description, [])))
    hidden_size = description.architecture.backbone.hidden_size
    dtype, device = to_torch_dtype(description.head_dtype.value), to_torch_device(description.device.value)
    if description.kind.value in ("masked", "sparse"):
        dtype = to_torch_dtype(description.dtype.value)  # as large as the vocabulary, and often tied to the embeddings
    if (labels := description.token_labels) is not None:
        table_name = _embedding_table_name(weight_loader)
        weight = make_classifier_weight(labels, weight_loader, table_name, tokenizer.tokenizer).to(device, dtype)
        return _classifier_from_weight(replace(head.spec, bias=False), weight)
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
    with torch.device("meta"):
        made = (
            Classifier(spec, hidden_size, description.num_labels)
            if spec.gating is None
            else GatedRewards(spec, hidden_size)
        )
        holder = nn.ModuleDict({"head": made})
    load_module(weight_loader, holder, table, num_layers=0, dtype=dtype, device=device)
    return holder["head"]  # type: ignore[return-value]


def _load_lm_classifier(description: ModelDescription, weight_loader: WeightLoader) -> Classifier:
    """Return the LM head as a classifier; `returned_token_ids` selects its logits."""
    weight = load_lm_head(weight_loader, _embedding_table_name(weight_loader)).to(
        to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    )
    token_ids = description.plan.defaults.returned_token_ids or ()
    if beyond := [token for token in token_ids if not 0 <= token < len(weight)]:
        raise LoadError(f"returned_token_ids: token id {beyond[0]} is out of range; the LM head has {len(weight)} rows")
    return _classifier_from_weight(HeadSpec(bias=False), weight)


def _check_plain_logits(description: ModelDescription) -> None:
    """Raise LoadError if the language model changes its logits, which changes the weights of a SPLADE vector."""
    for key in CHANGED_LOGITS:
        if (value := description.config.get(key)) is not None:
            raise LoadError(
                f"{description.config.source}: {key} is {value!r}, which is not supported in a SPLADE model; "
                "use convert='embed' to embed with its backbone"
            )


def _classifier_from_weight(spec: HeadSpec, weight: Tensor) -> Classifier:
    with torch.device("meta"):
        classifier = Classifier(spec, weight.shape[1], weight.shape[0])
    classifier.classifier.weight = nn.Parameter(weight, requires_grad=False)
    return classifier


def _embedding_table_name(weight_loader: WeightLoader) -> str:
    """Return the name of the embedding table, which is often tied to the LM head."""
    name = weight_loader.table["embed.tokens"]
    assert isinstance(name, str), "a vocabulary is one matrix"
    return name


def load_projector(description: ModelDescription, weight_loader: WeightLoader | None) -> nn.Module | None:
    if not {"embed", "token_embed"} & set(description.plan.tasks):
        return None
    projection, layers = description.architecture.projection, list[nn.Module]()
    if projection is not None and weight_loader is not None:
        layers = _load_stored_projection(description, weight_loader, projection)
    layers += _load_modules(description, *_projector_input_size(description, layers))
    return nn.Sequential(*layers) if layers else None


def _load_modules(description: ModelDescription, size_in: int | None, source: str) -> list[nn.Module]:
    """Load the Dense and LayerNorm modules; `size_in` and `source`: the size of their input and what produces it."""
    dtype, device = to_torch_dtype(description.head_dtype.value), to_torch_device(description.device.value)
    layers: list[nn.Module] = []
    for step in description.sentence_transformers.projector:
        key, size = ("in_features", step.in_features) if isinstance(step, DenseModule) else ("dimension", step.size)
        file = f"{step.folder}/config.json"
        if size_in is not None and size != size_in:
            raise LoadError(
                f"{description.checkpoint.folder / file}: {key} is {size}, but the input from {source} is {size_in}"
            )
        size_in, source = step.out_features if isinstance(step, DenseModule) else size, file
        if isinstance(step, DenseModule):
            weight, bias = load_dense(description.checkpoint, step)
            layer: nn.Module = Linear(step.in_features, step.out_features, bias=step.bias, activation=step.activation)
        else:
            weight, bias = load_layer_norm(description.checkpoint, step)
            layer = nn.LayerNorm(step.size)
        layer.weight = nn.Parameter(to_tensor(weight).to(device, dtype), requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(to_tensor(bias).to(device, dtype), requires_grad=False)
        if isinstance(step, DenseModule) and step.has_residual:
            matrix = load_residual(description.checkpoint, step)
            layer = ResidualLayer(layer, None if matrix is None else to_tensor(matrix).to(device, dtype))
        layers.append(layer)
    return layers


def _projector_input_size(description: ModelDescription, stored: list[nn.Module]) -> tuple[int | None, str]:
    """Return the input size of the first Sentence Transformers layer (None: unknown) and where it comes from."""
    if stored and isinstance(last := stored[-1], Linear):
        return last.weight.shape[0], "the projection in the checkpoint"
    if not description.entry.is_native:
        return None, ""  # only the Transformers library knows its hidden size
    pools = not {"embed", "classify"}.isdisjoint(description.plan.tasks)
    methods = description.plan.seq_pooling_types.value if pools else ("",)
    size = description.architecture.output_size
    if len(methods) == 1:
        return size, "the backbone"
    return size * len(methods), f"concatenated {' and '.join(methods)} pooling"


def _load_stored_projection(
    description: ModelDescription, weight_loader: WeightLoader, projection: StoredProjection
) -> list[nn.Module]:
    """Load the projection layers stored with the backbone weights, with their stored sizes."""
    if description.architecture.late_interaction_defaults is not None and description.sentence_transformers.projector:
        return []  # PyLate stores the projection as a Dense module instead
    candidates = (projection.weights, *projection.alternative_weights)
    names = next((names for names in candidates if weight_loader.has(f"{names[0]}.weight")), projection.weights)
    if projection.is_optional and not weight_loader.has(f"{names[0]}.weight"):
        return []
    dtype, device = to_torch_dtype(description.head_dtype.value), to_torch_device(description.device.value)
    layers: list[nn.Module] = []
    for name in names:
        weight, bias = to_tensor(weight_loader.read(f"{name}.weight")).to(device, dtype), None
        if weight_loader.has(f"{name}.bias"):
            bias = to_tensor(weight_loader.read(f"{name}.bias")).to(device, dtype)
        activation = projection.activation if projection.is_pooler or name != names[-1] else None
        layers.append(make_linear(weight, bias, activation))
    if description.architecture.late_interaction_defaults is not None:
        check_vector_size(description.checkpoint, weight.shape[0])
    return layers
