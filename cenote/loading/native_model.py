"""Load a model of the native runtime: packed weights and heads of NumPy arrays."""

from __future__ import annotations

from cenote.config.engine import EngineConfig
from cenote.kernels.cpu.library import Format, load_amx_level, load_level
from cenote.loading.adapter_files import check_without_adapters
from cenote.loading.head_layers import NumpyHeadLayers
from cenote.loading.heads import load_heads, with_output_sizes
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.model_description import ModelDescription
from cenote.loading.model_weights import open_weights
from cenote.loading.native_backbone import BackboneReader
from cenote.loading.native_format import make_backbone
from cenote.loading.packed_heads import pack_heads
from cenote.loading.sample_texts import make_sample
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.loading.weights import CheckpointWeights
from cenote.pooling.pooler import Pooler


def load_native_model(
    options: EngineConfig,
    description: ModelDescription,
    tokenizer: TokenizerFiles,
    weights: CheckpointWeights | None = None,
) -> LoadedModel:
    """Load the weights, one linear layer at a time."""
    architecture = description.architecture
    check_without_adapters(options, description.checkpoint, architecture)
    weight_loader = open_weights(description, options, weights)
    level = load_amx_level() if description.dtype.value == "bfloat16" else load_level()
    reader = BackboneReader(architecture.backbone, weight_loader, description.dtype.value, level)
    layers = NumpyHeadLayers()
    heads = load_heads(description, weight_loader, tokenizer, layers)
    weight_loader.check_complete(architecture.unused_weights)
    sample = make_sample(tokenizer, architecture.backbone.vocab_size)
    backbone, report = make_backbone(reader, _choose_format(description), sample)
    pack_heads(heads, "float32" if report is None else report.format)
    description = with_output_sizes(description, heads)
    return LoadedModel(
        description,
        backbone,
        Pooler(description.plan, heads, layers.ops, description.head_dtype.value),
        tokenizer,
        is_batch_invariant=True,
        products=report,
    )


def _choose_format(description: ModelDescription) -> Format:
    if description.quantization.value == "int8":
        return "int8"
    return description.matmul_dtype.value
