"""Load a model of the torch runtime: backbone, heads and adapters as modules on its device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.kernels.cpu.library import warn_without_library
from cenote.kernels.cpu_features import cpu_features
from cenote.layers.backbone import Backbone
from cenote.layers.deterministic import prepare_deterministic
from cenote.layers.int8 import Int8Quantizer
from cenote.layers.int8_check import Int8Check
from cenote.layers.lora import BackboneWithLoRA, find_lora_layers
from cenote.layers.matmul_format import prepare_matmuls
from cenote.layers.pack_linears import prepack
from cenote.layers.parallel_group import ParallelGroup
from cenote.layers.post_load import make_quantizer
from cenote.layers.torch_dtypes import to_torch_device, to_torch_dtype
from cenote.loading.backbone_loader import (
    build_backbone,
    load_backbone,
    load_span_head,
    use_deterministic_algorithms,
)
from cenote.loading.heads import load_heads, load_projector, with_output_sizes
from cenote.loading.linear_formats import packs_int8
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.lora import LoRALoader, load_adapters
from cenote.loading.model_description import ModelDescription
from cenote.loading.model_weights import open_weights
from cenote.loading.packed_heads import pack_heads
from cenote.loading.plugin_models import resolve_plugin_name
from cenote.loading.processor_files import read_processor_files
from cenote.loading.sample_texts import make_sample
from cenote.loading.tensor_model import load_tensor_model
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.loading.torch_head_layers import TorchHeadLayers
from cenote.loading.transformers_backend import LastToken, load_transformers_backbone
from cenote.loading.weights import CheckpointWeights
from cenote.models.image_spec import ProcessorFiles
from cenote.packed_batch import PackedBatch, pack_sequences
from cenote.pooling.heads import Heads
from cenote.pooling.pooler import Pooler
from cenote.pooling.torch_layers import TorchLayers
from cenote.pooling.torch_ops import TorchOps

if TYPE_CHECKING:
    from cenote.layers.tensor_parallel import SplitLayers
    from cenote.loading.tensor_parallel import StartRanks


def load_torch_model(
    options: EngineConfig,
    description: ModelDescription,
    tokenizer: TokenizerFiles,
    start_ranks: StartRanks | None = None,
    weights: CheckpointWeights | None = None,
) -> LoadedModel:
    """Load the weights; `start_ranks` starts the other ranks of a tensor-parallel model."""
    if description.kind.value == "tensors":
        return _load_tensor_model(options, description, tokenizer)
    if description.deterministic and description.device.value.type == "cuda":
        use_deterministic_algorithms()
    architecture = description.architecture
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    if description.entry.uses_transformers:
        if options.quantization is not None:
            raise LoadError(
                f"quantization={options.quantization} is not supported by the Transformers backend, which runs "
                f"{description.entry.name}; remove it"
            )
        return _load_transformers_model(description, tokenizer)
    if device.type == "cpu":
        warn_without_library()
    backbone = build_backbone(description)
    group: ParallelGroup | None = None
    split: SplitLayers | None = None
    if options.tensor_parallel_size > 1:
        from cenote.layers.tensor_parallel import SplitLayers

        assert start_ranks is not None, "tensor-parallel models are loaded by load_parallel_model"
        split = SplitLayers(backbone, 0, options.tensor_parallel_size, dtype)
        group = start_ranks(description)
    weight_loader = open_weights(description, options, weights)
    is_packed = (
        split is None
        and description.quantization.value == "int8"
        and packs_int8(description.dtype.value, cpu_features())
    )
    quantizer = make_quantizer(
        None if is_packed else description.quantization.value, device, is_required=options.quantization is not None
    )
    load_backbone(backbone, description, weight_loader, split, quantizer)
    head_layers = TorchHeadLayers(device)
    heads = load_heads(description, weight_loader, tokenizer, head_layers)
    span_head = load_span_head(description, weight_loader)
    description = with_output_sizes(description, heads)
    layers = frozenset(path for path, _ in find_lora_layers(backbone))
    lora_loader = LoRALoader(weight_loader, architecture, layers, dtype, device)
    if architecture.task_adapters is not None:
        options = replace(options, default_adapter=None)  # already merged
    adapters = load_adapters(lora_loader, description.checkpoint, architecture, options)
    weight_loader.check_complete(architecture.unused_weights)
    backbone.prepare_buffers(device, dtype)
    model = backbone if adapters is None else BackboneWithLoRA(backbone, adapters.context)
    if quantizer is not None:
        quantizer.finish(model)
    is_batch_invariant, products = False, None
    if split is not None and group is not None:
        from cenote.loading.tensor_parallel import split_heads

        prepack(model)
        split.connect(group)
        heads = split_heads(heads, group)
    else:
        matmul_dtype = to_torch_dtype(description.matmul_dtype.value) if _can_check_products(backbone) else dtype
        sample = _pack_sample(backbone, tokenizer)
        quantization = description.quantization.value if quantizer is None else None  # the others are done
        check: Int8Check | None = None
        if isinstance(quantizer, Int8Quantizer) and sample is not None:  # before the layers are fused
            check = Int8Check(model, backbone, quantizer, sample)
        products = prepare_matmuls(model, backbone, device, quantization, matmul_dtype, sample)
        if check is not None:
            products = check.run(products)
        pack_heads(heads, "float32" if products is None else products.format)
        weight_loader.forget_layers()
        is_batch_invariant = description.deterministic and prepare_deterministic(model)
    pooler = Pooler(description.plan, heads, head_layers.ops, description.head_dtype.value, span_head)
    processor = read_processor_files(description.checkpoint) if architecture.vision is not None else ProcessorFiles()
    return LoadedModel(
        description,
        model.eval(),
        pooler,
        tokenizer,
        adapters,
        processor,
        is_batch_invariant,
        products=products,
    )


def _can_check_products(backbone: Backbone) -> bool:
    """Whether the model computes states from token ids alone."""
    return type(backbone) is Backbone and backbone.vision is None


def _pack_sample(backbone: Backbone, tokenizer: TokenizerFiles) -> PackedBatch | None:
    """Return a batch to compare products on; None if the model cannot run on it."""
    ids = make_sample(tokenizer, backbone.spec.vocab_size) if type(backbone) is Backbone else None
    return None if ids is None else pack_sequences(ids)


def _load_transformers_model(description: ModelDescription, tokenizer: TokenizerFiles) -> LoadedModel:
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    encoding = tokenizer.tokenizer.encode("a")
    has_last_token = bool(encoding.type_ids) and encoding.type_ids[-1] > 1
    backbone = load_transformers_backbone(
        description.checkpoint,
        description.config,
        description.kind.value,
        dtype,
        device,
        LastToken(encoding.ids[-1], encoding.type_ids[-1]) if has_last_token else None,
    )
    layers = TorchLayers(device)
    projector = load_projector(description, None, layers)
    pooler = Pooler(description.plan, Heads(projector, projector), layers.ops, description.head_dtype.value)
    return LoadedModel(description, backbone, pooler, tokenizer)


def _load_tensor_model(options: EngineConfig, description: ModelDescription, tokenizer: TokenizerFiles) -> LoadedModel:
    """Load a plugin model, which has no tokenizer files and no pooling."""
    config = description.config
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    plugin = resolve_plugin_name(options, config)
    assert plugin is not None, "the plugin provides the architecture"
    model = load_tensor_model(plugin, description.entry.name, description.checkpoint, config, dtype, device)
    pooler = Pooler(description.plan, Heads(), TorchOps(), description.head_dtype.value)
    return LoadedModel(description, model, pooler, tokenizer)
