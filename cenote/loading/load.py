"""From options to a model ready to run: the only function that others call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError, PoolingError
from cenote.kernels.post_load import finish
from cenote.layers.attention import Attention
from cenote.layers.backbone import Embedding, Tower, plain_mlp
from cenote.layers.fused_encoder import stack
from cenote.layers.lora import AdaptedBackbone
from cenote.loading.checkpoint import find_checkpoint, first_line
from cenote.loading.describe import Description, describe
from cenote.loading.heads import load_heads, load_projector
from cenote.loading.image_processor_files import read_processor
from cenote.loading.lora import AdapterReader, LoadedAdapters, load_adapters
from cenote.loading.tensor_model import load_tensor_model, plugin_named
from cenote.loading.tokenizer_files import TokenizerFiles, no_tokenizer, read_tokenizer
from cenote.loading.transformers_backend import load_fallback
from cenote.loading.weights import Filler, open_weights
from cenote.models.vision_spec import ProcessorFiles, Vision
from cenote.pooling.heads import Heads
from cenote.pooling.plan import PoolingPlan
from cenote.pooling.pooler import Pooler

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    description: Description
    backbone: nn.Module
    pooler: Pooler
    tokenizer: TokenizerFiles
    adapters: LoadedAdapters | None = None  # where the model takes any
    processor: ProcessorFiles = ProcessorFiles()  # what its files say of images


def load(options: EngineConfig) -> LoadedModel:
    description = describe(options)
    if description.kind.value == "tensors":
        return _load_tensor_model(options, description)
    tokenizer = _tokenizer(options, description)
    if description.kind.value == "hybrid":
        description = replace(description, plan=_without_special_tokens(description, tokenizer))
    architecture = description.architecture
    device, dtype = description.device.value, description.dtype.value
    if not description.entry.native:
        return _load_fallback(description, tokenizer)
    filler = Filler(open_weights(description.checkpoint), architecture.tables, architecture.prefixes)
    backbone = _built(
        lambda: architecture.assembled(
            architecture.backbone,
            architecture.embed or Embedding,
            architecture.mixer or Attention,
            architecture.mlp or plain_mlp,
        ),
        description.config.source,
    )
    filler.fill(backbone, filler.table, num_layers=architecture.backbone.num_layers, dtype=dtype, device=device)
    if architecture.vision is not None:
        backbone.vision = _tower(architecture.vision, filler, dtype, device, description.config.source)
    heads = load_heads(description, filler, tokenizer)
    description = _measured(description, heads)
    reader = AdapterReader(filler, architecture.prefixes, dtype, device)
    adapters = load_adapters(reader, description.checkpoint, architecture, options)
    filler.finish(architecture.unused)
    backbone.prepare(device, dtype)
    whole = backbone if adapters is None else AdaptedBackbone(backbone, adapters.adapters)
    finish(whole, device, description.quantization.value)
    backbone.stack = stack(backbone)
    pooler = Pooler(description.plan, heads, description.head_dtype.value)
    processor = read_processor(description.checkpoint) if architecture.vision is not None else ProcessorFiles()
    return LoadedModel(description, whole.eval(), pooler.eval(), tokenizer, adapters, processor)


def _built(make: Callable[[], Module], source: str) -> Module:
    """A module without weights; sizes that describing it did not look at are wrong where it cannot be made."""
    try:
        with torch.device("meta"):
            return make()
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        raise LoadError(f"{source}: a value in it makes no sense: {said}") from error


def _tower(vision: Vision, filler: Filler, dtype: torch.dtype, device: torch.device, source: str) -> Tower:
    tower = _built(vision.tower, f"{source}: vision_config")
    table = filler.spelled((vision.weights, *vision.also), vision.prefixes)
    filler.fill(tower, table, num_layers=vision.num_layers, dtype=dtype, device=device, inside="vision.")
    return tower


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
    projector = load_projector(description, None)
    pooler = Pooler(description.plan, Heads(projector, projector), description.head_dtype.value)
    return LoadedModel(description, backbone, pooler.eval(), tokenizer)


def _load_tensor_model(options: EngineConfig, description: Description) -> LoadedModel:
    """It has no tokens, and its answers are not pooled."""
    config, dtype, device = description.config, description.dtype.value, description.device.value
    plugin = plugin_named(options, config)
    assert plugin is not None, "its package brought the architecture"
    model = load_tensor_model(plugin, description.entry.name, description.checkpoint, config, dtype, device)
    pooler = Pooler(description.plan, Heads(), description.head_dtype.value)
    return LoadedModel(description, model, pooler, no_tokenizer())


def _tokenizer(options: EngineConfig, description: Description) -> TokenizerFiles:
    if options.tokenizer is None:
        return read_tokenizer(description.checkpoint)
    return read_tokenizer(
        find_checkpoint(
            options.tokenizer, revision=options.tokenizer_revision, token=options.hf_token, needs_config=False
        )
    )
