"""From options to a model ready to run: the only function that others call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from cenote.config import EngineConfig
from cenote.errors import LoadError
from cenote.kernels.linear import prepack
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, Embedding, plain_mlp
from cenote.layers.linear import Linear
from cenote.loading.checkpoint import find_checkpoint
from cenote.loading.describe import Description, describe
from cenote.loading.sentence_transformers import DenseFile, load_dense, load_layer_norm
from cenote.loading.tokenizer_files import TokenizerFiles, read_tokenizer
from cenote.loading.weights import Filler, open_weights
from cenote.pooling.heads import Classifier, Heads, VocabularyWeights
from cenote.pooling.pooler import Pooler


@dataclass(frozen=True, slots=True)
class LoadedModel:
    description: Description
    backbone: nn.Module
    pooler: Pooler
    tokenizer: TokenizerFiles


def load(options: EngineConfig) -> LoadedModel:
    description = describe(options)
    tokenizer = _tokenizer(options, description)
    architecture = description.architecture
    device, dtype = description.device.value, description.dtype.value
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
    filler.finish(architecture.unused)
    backbone.prepare(device, dtype)
    prepack(backbone)
    pooler = Pooler(description.plan, heads, description.head_dtype.value)
    return LoadedModel(description, backbone.eval(), pooler.eval(), tokenizer)


def _heads(description: Description, filler: Filler, tokenizer: TokenizerFiles) -> Heads:
    projector, classifier = _projector(description, filler), _classifier(description, filler, tokenizer)
    if description.kind.value == "sparse":
        assert classifier is not None, "a SPLADE model has a masked-language-model head"
        return Heads(vocabulary=VocabularyWeights(classifier))
    return Heads(projector=projector, token_projector=projector, classifier=classifier)


def _tokenizer(options: EngineConfig, description: Description) -> TokenizerFiles:
    if options.tokenizer is None:
        return read_tokenizer(description.checkpoint)
    return read_tokenizer(
        find_checkpoint(
            options.tokenizer, revision=options.tokenizer_revision, token=options.hf_token, needs_config=False
        )
    )


def _classifier(description: Description, filler: Filler, tokenizer: TokenizerFiles) -> Classifier | None:
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


def _projector(description: Description, filler: Filler) -> nn.Module | None:
    if not {"embed", "token_embed"} & set(description.plan.tasks):
        return None
    dtype, device = description.head_dtype.value, description.device.value
    layers = _stored_projection(description, filler)
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
        layers.append(layer)
    return nn.Sequential(*layers) if layers else None


def _stored_projection(description: Description, filler: Filler) -> list[nn.Module]:
    """The layers that lie among the weights of the backbone, as large as they are there."""
    projection = description.architecture.projection
    if projection is None:
        return []
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
