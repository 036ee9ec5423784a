"""Load a model: backbone, heads, tokenizer and adapters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.kernels.cpu.library import warn_without_library
from cenote.kernels.cpu_features import cpu_features
from cenote.layers.backbone import Backbone
from cenote.layers.deterministic import prepare_deterministic
from cenote.layers.int8 import Int8Quantizer
from cenote.layers.int8_check import Int8Check
from cenote.layers.lora import BackboneWithLoRA, find_lora_layers
from cenote.layers.matmul_format import MatmulReport, prepare_matmuls
from cenote.layers.pack_linears import prepack
from cenote.layers.parallel_group import ParallelGroup
from cenote.layers.post_load import make_quantizer
from cenote.layers.torch_dtypes import to_torch_device, to_torch_dtype
from cenote.loading.backbone_loader import (
    build_backbone,
    load_backbone,
    load_span_head,
    open_weights,
    use_deterministic_algorithms,
)
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import Fingerprint, check_fingerprint, compute_fingerprint
from cenote.loading.heads import load_heads, load_projector
from cenote.loading.linear_formats import packs_int8
from cenote.loading.lora import LoRALoader, LoRARegistry, load_adapters
from cenote.loading.model_description import ModelDescription
from cenote.loading.packed_heads import pack_heads
from cenote.loading.plugin_models import resolve_plugin_name
from cenote.loading.tensor_model import load_tensor_model
from cenote.loading.tokenizer_checks import check_tokenizer, warn_of_token_types
from cenote.loading.tokenizer_files import (
    TokenizerFiles,
    append_eos,
    empty_tokenizer_files,
    load_tokenizer_files,
    remove_special_tokens,
)
from cenote.loading.torch_head_layers import TorchHeadLayers
from cenote.loading.transformers_backend import LastToken, load_transformers_backbone
from cenote.loading.weights import CheckpointWeights
from cenote.models.image_spec import ProcessorFiles
from cenote.packed_batch import PackedBatch, pack_sequences
from cenote.pooling.heads import Heads
from cenote.pooling.layers import Sequential
from cenote.pooling.plan import PoolingPlan
from cenote.pooling.pooler import Pooler
from cenote.pooling.torch_layers import TorchLayers
from cenote.pooling.torch_ops import TorchOps

if TYPE_CHECKING:
    from cenote.layers.tensor_parallel import SplitLayers
    from cenote.loading.tensor_parallel import StartRanks

logger = logging.getLogger("cenote")

# on which float16 and int8 products are compared with float32
SAMPLE_TEXTS = (
    "which planet is red?",
    "Paris is the capital of France.",
    "The cave is 40 metres deep, and its entrance is hidden under the roots of an old ceiba tree.",
    "def add(a, b):\n    return a + b  # 1,234.5 %",
)
MAX_SAMPLE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class LoadedModel:
    description: ModelDescription
    backbone: nn.Module
    pooler: Pooler
    tokenizer: TokenizerFiles
    adapters: LoRARegistry | None = None  # None: LoRA is not enabled
    processor_files: ProcessorFiles = ProcessorFiles()  # image preprocessing settings
    is_batch_invariant: bool = False  # with `deterministic`: batches give the same bits as sequences that run alone
    fingerprint: Fingerprint | None = None
    products: MatmulReport | None = None  # of the linear layers, on a CPU with kernels of ours


def load_model(
    options: EngineConfig,
    route: str | None = None,
    start_ranks: StartRanks | None = None,
    *,
    weights: CheckpointWeights | None = None,
) -> LoadedModel:
    """Load a model; `route` is that of a model with a Router, None: its default; `weights` replace the checkpoint's.

    `start_ranks` starts the other ranks of a tensor-parallel model, when it is known that the model can be split.
    """
    description = describe_model(options, route)
    if options.tensor_parallel_size > 1:
        # imported on use, here and below: most models are not split, and every module makes the start slower
        from cenote.loading.tensor_parallel import check_can_split

        check_can_split(description, options)
    fingerprint = compute_fingerprint(description, options)
    if options.expect_fingerprint is not None:
        check_fingerprint(fingerprint, options.expect_fingerprint, description.name)
    return replace(_load_described(options, description, start_ranks, weights), fingerprint=fingerprint)


def _load_described(
    options: EngineConfig,
    description: ModelDescription,
    start_ranks: StartRanks | None,
    weights: CheckpointWeights | None,
) -> LoadedModel:
    if description.deterministic and description.device.value.type == "cuda":
        use_deterministic_algorithms()
    for doubt in description.doubts:
        logger.warning("%s", doubt)
    if description.kind.value == "tensors":
        return _load_tensor_model(options, description)
    tokenizer = _load_tokenizer(description)
    if description.architecture.appends_eos:
        append_eos(tokenizer)
    if description.kind.value == "hybrid":
        description = replace(description, plan=_exclude_special_tokens(description, tokenizer))
    architecture = description.architecture
    if not architecture.adds_special_tokens:
        remove_special_tokens(tokenizer.tokenizer)
    if architecture.is_static:
        unknown_id = tokenizer.unk_token_id if architecture.drops_unknown_tokens else None
        unknown = () if unknown_id is None else (unknown_id,)
        plan = replace(description.plan, pools_table=True, unpooled_token_ids=unknown)
        description = replace(description, plan=plan)
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    if not description.entry.is_native:
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
    description = _with_output_sizes(description, heads)
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
        sample = _make_sample(backbone, tokenizer)
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


def _make_sample(backbone: Backbone, tokenizer: TokenizerFiles) -> PackedBatch | None:
    """Return a few short texts to compare products on; None if the model cannot run on them."""
    if type(backbone) is not Backbone:
        return None
    ids = [encoding.ids[:MAX_SAMPLE_TOKENS] for encoding in tokenizer.tokenizer.encode_batch(list(SAMPLE_TEXTS))]
    is_valid = all(row and max(row) < backbone.spec.vocab_size for row in ids)
    return pack_sequences(ids) if is_valid else None


def _with_output_sizes(description: ModelDescription, heads: Heads) -> ModelDescription:
    """Return the description with the embedding size of the stored projection, which is known only after loading."""
    layers = heads.token_projector
    if description.architecture.projection is None or not isinstance(layers, Sequential):
        return description
    size = getattr(layers.layers[-1], "out_features", description.plan.matryoshka.full_size)
    matryoshka = replace(description.plan.matryoshka, full_size=size)
    return replace(description, plan=replace(description.plan, matryoshka=matryoshka))


def _exclude_special_tokens(description: ModelDescription, tokenizer: TokenizerFiles) -> PoolingPlan:
    """Return the bge-m3 plan: special tokens get no lexical weight, the first no embedding; weights are scalars."""

    def token_id(*names: str) -> int | None:
        texts = (tokenizer.special_tokens.get(name) for name in names)
        token_ids = (None if text is None else tokenizer.tokenizer.token_to_id(text) for text in texts)
        in_config = (description.config.get(f"{name}_id") for name in names)
        return next((token for token in (*token_ids, *in_config) if token is not None), None)

    first, last = token_id("cls_token", "bos_token"), token_id("eos_token", "sep_token")
    special = (first, last, tokenizer.pad_token_id, tokenizer.unk_token_id)
    return replace(
        description.plan,
        edge_token_ids={"token_classify": (first, last), "token_embed": (first, None)},
        scalar_tasks=("token_classify",),
        excluded_token_ids=tuple(token for token in special if token is not None),
    )


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


def _load_tensor_model(options: EngineConfig, description: ModelDescription) -> LoadedModel:
    """Load a plugin model, which has no tokenizer and no pooling."""
    config = description.config
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    plugin = resolve_plugin_name(options, config)
    assert plugin is not None, "the plugin provides the architecture"
    model = load_tensor_model(plugin, description.entry.name, description.checkpoint, config, dtype, device)
    pooler = Pooler(description.plan, Heads(), TorchOps(), description.head_dtype.value)
    return LoadedModel(description, model, pooler, empty_tokenizer_files())


def _load_tokenizer(description: ModelDescription) -> TokenizerFiles:
    architecture = description.architecture
    if not architecture.reads_texts:
        return empty_tokenizer_files()
    checkpoint = description.find_tokenizer()
    files = load_tokenizer_files(
        checkpoint,
        is_plain=architecture.has_plain_tokenizer,
        text_suffix=description.sentence_transformers.text_suffix,
    )
    if architecture.add_tokens is not None:
        architecture.add_tokens(files.tokenizer)
    for token in architecture.required_tokens:
        if files.tokenizer.token_to_id(token) is None:
            raise LoadError(f"{checkpoint.folder}: the tokenizer has no token {token!r}, which scores need")
    check_tokenizer(files, description.config, architecture.backbone.vocab_size, checkpoint.folder)
    if description.kind.value == "sequence":
        warn_of_token_types(files, description.config, checkpoint.folder)
    return files


def read_processor_files(checkpoint: Checkpoint) -> ProcessorFiles:
    """Return the settings of the image processor."""
    processor = checkpoint.read_json_object("processor_config.json")
    nested = processor.get("image_processor")
    image_processor = checkpoint.read_json_object("preprocessor_config.json")
    return ProcessorFiles({**(nested if isinstance(nested, Mapping) else {}), **image_processor}, processor)
