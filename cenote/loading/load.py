"""From options to a model ready to run: the only function that others call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from cenote.config import EngineConfig
from cenote.errors import LoadError
from cenote.kernels.linear import prepack
from cenote.layers.adapters import AdaptedBackbone
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Embedding, plain_mlp
from cenote.layers.linear import Linear
from cenote.layers.spec import HeadSpec
from cenote.loading.adapters import AdapterReader, LoadedAdapters, load_adapters
from cenote.loading.checkpoint import find_checkpoint
from cenote.loading.convert import language_head
from cenote.loading.describe import Description, describe
from cenote.loading.fallback import load_fallback
from cenote.loading.hybrid import load_linear, require_head_files
from cenote.loading.sentence_transformers import DenseFile, load_dense, load_layer_norm, load_residual
from cenote.loading.tokenizer_files import TokenizerFiles, read_tokenizer
from cenote.loading.weights import Filler, open_weights
from cenote.pooling.heads import Classifier, Heads, Residual, VocabularyWeights
from cenote.pooling.pooler import Pooler
from cenote.pooling.resolve import PoolingPlan


@dataclass(frozen=True, slots=True)
class LoadedModel:
    description: Description
    backbone: nn.Module
    pooler: Pooler
    tokenizer: TokenizerFiles
    adapters: LoadedAdapters | None = None  # where the model takes any


def load(options: EngineConfig) -> LoadedModel:
    description = describe(options)
    tokenizer = _tokenizer(options, description)
    if description.kind.value == "hybrid":
        description = replace(description, plan=_without_special_tokens(description, tokenizer))
    architecture = description.architecture
    device, dtype = description.device.value, description.dtype.value
    if not description.entry.native:
        return _load_fallback(description, tokenizer)
    filler = Filler(open_weights(description.checkpoint), architecture.tables, architecture.prefixes)
    with torch.device("meta"):
        backbone = Backbone(
            architecture.backbone,
            architecture.embed or Embedding,
            architecture.mixer or Attention,
            architecture.mlp or plain_mlp,
        )
    filler.fill(backbone, filler.table, num_layers=architecture.backbone.num_layers, dtype=dtype, device=device)
    heads = _heads(description, filler, tokenizer)
    description = _measured(description, heads)
    reader = AdapterReader(filler, architecture.prefixes, dtype, device)
    adapters = load_adapters(reader, description.checkpoint, architecture, options)
    filler.finish(architecture.unused)
    backbone.prepare(device, dtype)
    whole = backbone if adapters is None else AdaptedBackbone(backbone, adapters.adapters)
    prepack(whole)
    pooler = Pooler(description.plan, heads, description.head_dtype.value)
    return LoadedModel(description, whole.eval(), pooler.eval(), tokenizer, adapters)


def _measured(description: Description, heads: Heads) -> Description:
    """How long vectors are, which is known of a projection among the weights only when it is read."""
    layers = heads.token_projector
    if description.architecture.projection is None or not isinstance(layers, nn.Sequential):
        return description
    size = getattr(layers[-1], "out_features", description.plan.matryoshka.full_size)
    matryoshka = replace(description.plan.matryoshka, full_size=size)
    return replace(description, plan=replace(description.plan, matryoshka=matryoshka))


def _without_special_tokens(description: Description, tokenizer: TokenizerFiles) -> PoolingPlan:
    """bge-m3 has no weight for the tokens around a text, and no vector for the first; as one number for each token."""

    def token_id(*names: str) -> int | None:
        texts = (tokenizer.special_tokens.get(name) for name in names)
        found = (None if text is None else tokenizer.tokenizer.token_to_id(text) for text in texts)
        in_config = (description.config.get(f"{name}_id") for name in names)
        return next((token for token in (*found, *in_config) if token is not None), None)

    first, last = token_id("cls_token", "bos_token"), token_id("eos_token", "sep_token")
    special = (first, last, tokenizer.pad_token_id, tokenizer.unk_token_id)
    return replace(
        description.plan,
        borders={"token_classify": (first, last), "token_embed": (first, None)},
        scalar_tasks=("token_classify",),
        not_words=tuple(token for token in special if token is not None),
    )


def _load_fallback(description: Description, tokenizer: TokenizerFiles) -> LoadedModel:
    device, dtype = description.device.value, description.dtype.value
    backbone = load_fallback(description.checkpoint, description.config, description.kind.value, dtype, device)
    projector = _projector(description, None)
    pooler = Pooler(description.plan, Heads(projector, projector), description.head_dtype.value)
    return LoadedModel(description, backbone, pooler.eval(), tokenizer)


def _heads(description: Description, filler: Filler, tokenizer: TokenizerFiles) -> Heads:
    if description.kind.value == "hybrid":
        return _hybrid_heads(description, filler)
    projector, classifier = _projector(description, filler), _classifier(description, filler, tokenizer)
    if description.kind.value == "sparse":
        assert classifier is not None, "a SPLADE model has a masked-language-model head"
        splade = description.sentence_transformers.splade
        if splade is None:
            return Heads(vocabulary=VocabularyWeights(classifier))
        return Heads(vocabulary=VocabularyWeights(classifier, strategy=splade.strategy, num_logs=splade.num_logs))
    return Heads(projector=projector, token_projector=projector, classifier=classifier)


def _hybrid_heads(description: Description, filler: Filler) -> Heads:
    sparse, colbert = require_head_files(description.checkpoint)
    size = description.architecture.backbone.hidden_size
    dtype, device = description.head_dtype.value, description.device.value
    with torch.device("meta"):
        classifier = Classifier(HeadSpec(), size, description.num_labels)
    classifier.classifier = load_linear(sparse, size, description.num_labels, dtype, device)
    return Heads(
        projector=_projector(description, filler),
        token_projector=load_linear(colbert, size, None, dtype, device),
        classifier=classifier,
    )


def _tokenizer(options: EngineConfig, description: Description) -> TokenizerFiles:
    if options.tokenizer is None:
        return read_tokenizer(description.checkpoint)
    return read_tokenizer(
        find_checkpoint(
            options.tokenizer, revision=options.tokenizer_revision, token=options.hf_token, needs_config=False
        )
    )


def _classifier(description: Description, filler: Filler, tokenizer: TokenizerFiles) -> Classifier | None:
    if description.kind.value == "causal":
        return _language_head(description, filler)
    head = description.head
    if head is None:
        return None
    hidden_size = description.architecture.backbone.hidden_size
    dtype, device = description.head_dtype.value, description.device.value
    if description.kind.value in ("masked", "sparse"):
        dtype = description.dtype.value  # as wide as the vocabulary, and often the very matrix of the embeddings
    if (labels := description.token_labels) is not None:
        vocabulary = filler.table["embed.tokens"]
        assert isinstance(vocabulary, str), "a vocabulary is one matrix"
        classifier = Classifier(replace(head.spec, bias=False), hidden_size, labels.num_labels)
        classifier.classifier.weight = nn.Parameter(
            labels.weight(filler, vocabulary, tokenizer.tokenizer).to(device, dtype), requires_grad=False
        )
        return classifier
    table = filler.choose((head.weights, *head.also))
    last = table.get("head.classifier") or table["head.classifier.weight"]
    assert isinstance(last, str), "a classifier is one matrix"
    last = last.removesuffix(".weight")
    if not filler.has(f"{last}.weight"):
        raise LoadError(
            f"{description.checkpoint.folder}: no {last}.weight in the checkpoint, so {description.entry.name} is no "
            "classifier yet; use convert='embed', or name answer tokens: "
            'hf_overrides={"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}'
        )
    spec = head.spec if head.spec.bias is not None else replace(head.spec, bias=filler.has(f"{last}.bias"))
    with torch.device("meta"):
        holder = nn.ModuleDict({"head": Classifier(spec, hidden_size, description.num_labels)})
    filler.fill(holder, table, num_layers=0, dtype=dtype, device=device)
    return holder["head"]  # type: ignore[return-value]


def _language_head(description: Description, filler: Filler) -> Classifier:
    """From a state to the vocabulary; requests name the few words whose logits they want."""
    vocabulary = filler.table["embed.tokens"]
    assert isinstance(vocabulary, str), "a vocabulary is one matrix"
    weight = language_head(filler, vocabulary).to(description.device.value, description.dtype.value)
    asked = description.plan.defaults.returned_token_ids or ()
    if beyond := [token for token in asked if not 0 <= token < len(weight)]:
        raise LoadError(
            f"returned_token_ids names the token {beyond[0]}; the language-model head has {len(weight)} rows"
        )
    with torch.device("meta"):
        classifier = Classifier(HeadSpec(bias=False), weight.shape[1], weight.shape[0])
    classifier.classifier.weight = nn.Parameter(weight, requires_grad=False)
    return classifier


def _projector(description: Description, filler: Filler | None) -> nn.Module | None:
    if not {"embed", "token_embed"} & set(description.plan.tasks):
        return None
    dtype, device = description.head_dtype.value, description.device.value
    layers = _stored_projection(description, filler) if filler is not None else []
    steps = description.sentence_transformers.projector
    for step in steps:
        if isinstance(step, DenseFile):
            weight, bias = load_dense(description.checkpoint, step)
            layer: nn.Module = Linear(step.in_features, step.out_features, bias=step.bias, activation=step.activation)
        else:
            weight, bias = load_layer_norm(description.checkpoint, step)
            layer = nn.LayerNorm(step.size)
        layer.weight = nn.Parameter(weight.to(device, dtype), requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias.to(device, dtype), requires_grad=False)
        if isinstance(step, DenseFile) and step.residual:
            matrix = load_residual(description.checkpoint, step)
            layer = Residual(layer, None if matrix is None else matrix.to(device, dtype))
        layers.append(layer)
    return nn.Sequential(*layers) if layers else None


def _stored_projection(description: Description, filler: Filler) -> list[nn.Module]:
    """The layers that lie among the weights of the backbone, as large as they are there."""
    projection = description.architecture.projection
    if projection is None:
        return []
    if description.architecture.late_interaction is not None and description.sentence_transformers.projector:
        return []  # PyLate has written it anew, into a folder of its own
    dtype, device = description.head_dtype.value, description.device.value
    layers: list[nn.Module] = []
    for name in projection.weights:
        weight = filler.read(f"{name}.weight").to(device, dtype)
        bias = filler.read(f"{name}.bias").to(device, dtype) if filler.has(f"{name}.bias") else None
        activation = projection.activation if name != projection.weights[-1] else None
        with torch.device("meta"):
            layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None, activation=activation)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            layer.bias = nn.Parameter(bias, requires_grad=False)
        layers.append(layer)
    return layers
