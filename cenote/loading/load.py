"""Load a model: backbone, heads, tokenizer and adapters."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError, PoolingError
from cenote.kernels.cpu_features import cpu_features
from cenote.kernels.linear import prepack
from cenote.kernels.post_load import make_quantizer, packs_int8
from cenote.kernels.quantized_linear import WeightQuantizer
from cenote.layers.attention import Attention
from cenote.layers.backbone import Backbone, InputEmbedding, VisionTower, build_mlp
from cenote.layers.counted_span_head import make_entity_head
from cenote.layers.deterministic import prepare_deterministic
from cenote.layers.lora import BackboneWithLoRA
from cenote.layers.parallel_group import ParallelGroup
from cenote.layers.products import ProductReport, prepare_products
from cenote.layers.span_head import EntityHead
from cenote.layers.tensor_parallel import SplitLayers
from cenote.loading.checkpoint import first_line
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import Fingerprint, check_fingerprint, compute_fingerprint
from cenote.loading.gliner import add_prompt_tokens
from cenote.loading.gliner2 import add_schema_tokens
from cenote.loading.heads import load_heads, load_projector
from cenote.loading.image_processor_files import read_processor_files
from cenote.loading.lora import LoRALoader, LoRARegistry, load_adapters
from cenote.loading.merged_weights import TaskAdapter, open_model_weights
from cenote.loading.model_description import ModelDescription
from cenote.loading.static_embeddings import has_plain_tokenizer, without_special_tokens
from cenote.loading.tensor_model import load_tensor_model, resolve_plugin_name
from cenote.loading.tensor_parallel import StartRanks, check_can_split, split_heads
from cenote.loading.tokenizer_checks import check_tokenizer, warn_of_token_types
from cenote.loading.tokenizer_files import (
    TokenizerFiles,
    append_eos,
    append_suffix,
    empty_tokenizer_files,
    load_tokenizer_files,
)
from cenote.loading.tokenizer_source import find_tokenizer
from cenote.loading.transformers_backend import LastToken, load_transformers_backbone
from cenote.loading.weight_loader import NO_SHARDS, WeightLoader
from cenote.loading.weights import CheckpointWeights
from cenote.models.architecture import Architecture
from cenote.models.vision_spec import ProcessorFiles, VisionSpec
from cenote.packed_batch import PackedBatch, pack_sequences
from cenote.pooling.heads import Heads, SpladeHead
from cenote.pooling.plan import PoolingPlan
from cenote.pooling.pooler import Pooler

logger = logging.getLogger("cenote")

# on which float16 and int8 products are compared with float32
SAMPLE_TEXTS = (
    "which planet is red?",
    "Paris is the capital of France.",
    "The cave is 40 metres deep, and its entrance is hidden under the roots of an old ceiba tree.",
    "def add(a, b):\n    return a + b  # 1,234.5 %",
)
MAX_SAMPLE_TOKENS = 32

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    description: ModelDescription
    backbone: nn.Module
    pooler: Pooler
    tokenizer: TokenizerFiles
    adapters: LoRARegistry | None = None  # None: LoRA is not enabled
    processor_files: ProcessorFiles = ProcessorFiles()  # image preprocessing settings
    span_head: EntityHead | None = None  # of a model that finds entities of the labels in a request
    is_batch_invariant: bool = False  # with `deterministic`: batches give the same bits as sequences that run alone
    fingerprint: Fingerprint | None = None
    products: ProductReport | None = None  # of the linear layers, on a CPU with kernels of ours


@dataclass(frozen=True, slots=True)
class RankModel:
    """The part of a tensor-parallel model that a rank other than the first computes."""

    backbone: Backbone
    splade: SpladeHead | None  # None: the first rank computes the heads alone
    num_read_bytes: int  # of the checkpoint


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
    tokenizer = _load_tokenizer(options, description)
    if description.architecture.appends_eos:
        append_eos(tokenizer)
    if description.kind.value == "hybrid":
        description = replace(description, plan=_exclude_special_tokens(description, tokenizer))
    architecture = description.architecture
    if not architecture.adds_special_tokens:
        tokenizer = without_special_tokens(tokenizer)
    if architecture.is_static:
        unknown_id = tokenizer.unk_token_id if architecture.drops_unknown_tokens else None
        unknown = () if unknown_id is None else (unknown_id,)
        plan = replace(description.plan, pools_table=True, unpooled_token_ids=unknown)
        description = replace(description, plan=plan)
    device, dtype = description.device.value, description.dtype.value
    if not description.entry.is_native:
        if options.quantization is not None:
            raise LoadError(
                f"quantization={options.quantization} is not supported by the Transformers backend, which runs "
                f"{description.entry.name}; remove it"
            )
        return _load_transformers_model(description, tokenizer)
    backbone = _build_backbone(description)
    group: ParallelGroup | None = None
    split: SplitLayers | None = None
    if options.tensor_parallel_size > 1:
        assert start_ranks is not None, "tensor-parallel models are loaded by load_parallel_model"
        split = SplitLayers(backbone, 0, options.tensor_parallel_size, dtype)
        group = start_ranks(description)
    weight_loader = _open_weights(description, options, weights)
    is_packed = split is None and description.quantization.value == "int8" and packs_int8(dtype, cpu_features())
    quantizer = make_quantizer(
        None if is_packed else description.quantization.value, device, is_required=options.quantization is not None
    )
    _load_backbone(backbone, description, weight_loader, split, quantizer)
    heads = load_heads(description, weight_loader, tokenizer)
    span_head = _load_span_head(description, weight_loader)
    description = _with_output_sizes(description, heads)
    lora_loader = LoRALoader(weight_loader, architecture.prefixes, dtype, device)
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
        prepack(model)
        split.connect(group)
        heads = split_heads(heads, group)
    else:
        matmul_dtype = description.matmul_dtype.value if _can_check_products(backbone) else dtype
        sample = _make_sample(backbone, tokenizer)
        quantization = description.quantization.value if quantizer is None else None  # the others are done
        products = prepare_products(model, backbone, device, quantization, matmul_dtype, sample)
        is_batch_invariant = description.deterministic and prepare_deterministic(model)
    pooler = Pooler(description.plan, heads, description.head_dtype.value)
    processor = read_processor_files(description.checkpoint) if architecture.vision is not None else ProcessorFiles()
    return LoadedModel(
        description,
        model.eval(),
        pooler.eval(),
        tokenizer,
        adapters,
        processor,
        span_head,
        is_batch_invariant,
        products=products,
    )


def _can_check_products(backbone: Backbone) -> bool:
    """Whether the model computes states from token ids alone."""
    return type(backbone) is Backbone and backbone.vision is None


def _make_sample(backbone: Backbone, tokenizer: TokenizerFiles) -> PackedBatch | None:
    """Return a few short texts to compare products on; None if the model cannot run on them."""
    if not _can_check_products(backbone):
        return None
    ids = [encoding.ids[:MAX_SAMPLE_TOKENS] for encoding in tokenizer.tokenizer.encode_batch(list(SAMPLE_TEXTS))]
    is_valid = all(row and max(row) < backbone.spec.vocab_size for row in ids)
    return pack_sequences(ids) if is_valid else None


def load_rank(options: EngineConfig, group: ParallelGroup) -> RankModel:
    """Load the part of a rank of a tensor-parallel model, without the checks that `load_model` makes on the first."""
    description = describe_model(options)
    if description.deterministic and description.device.value.type == "cuda":
        use_deterministic_algorithms()
    backbone = _build_backbone(description)
    split = SplitLayers(backbone, group.rank, group.num_ranks, description.dtype.value)
    weight_loader = _open_weights(description, options)
    quantizer = make_quantizer(
        description.quantization.value, description.device.value, is_required=options.quantization is not None
    )
    _load_backbone(backbone, description, weight_loader, split, quantizer)
    splade = None
    if description.kind.value == "sparse":
        heads = split_heads(load_heads(description, weight_loader, empty_tokenizer_files()), group)
        assert isinstance(heads.splade, SpladeHead), "static weights are refused"
        splade = heads.splade.eval()
    if group.rank:
        split.drop_biases()
    backbone.prepare_buffers(description.device.value, description.dtype.value)
    if quantizer is not None:
        quantizer.finish(backbone)
    prepack(backbone)
    split.connect(group)
    return RankModel(backbone.eval(), splade, weight_loader.weights.num_read_bytes)


def _build_backbone(description: ModelDescription) -> Backbone:
    architecture = description.architecture
    return _build(
        lambda: architecture.backbone_class(
            architecture.backbone,
            architecture.make_embedding or InputEmbedding,
            architecture.make_mixer or Attention,
            architecture.make_mlp or build_mlp,
        ),
        description.config.source,
    )


def _open_weights(
    description: ModelDescription, options: EngineConfig, weights: CheckpointWeights | None = None
) -> WeightLoader:
    architecture = description.architecture
    if weights is None:
        adapter = _resolve_task_adapter(architecture, options)
        weights = open_model_weights(description.checkpoint, adapter, description.device.value)
    return WeightLoader(weights, architecture.weight_tables, architecture.prefixes)


def _load_backbone(
    backbone: Backbone,
    description: ModelDescription,
    weight_loader: WeightLoader,
    split: SplitLayers | None,
    quantizer: WeightQuantizer | None,
) -> None:
    architecture = description.architecture
    device, dtype = description.device.value, description.dtype.value
    weight_loader.load(
        backbone,
        weight_loader.table,
        num_layers=architecture.backbone.num_layers,
        dtype=dtype,
        device=device,
        shards=NO_SHARDS if split is None else split.shards,
        quantizer=quantizer,
    )
    if architecture.vision is not None:
        backbone.vision = _load_vision_tower(description, architecture.vision, weight_loader, quantizer)


def use_deterministic_algorithms() -> None:
    """Make torch refuse operators on a GPU whose sums have no fixed order; applies to the whole process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; torch requires it
    torch.use_deterministic_algorithms(True)
    # all memory is written before it is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _resolve_task_adapter(architecture: Architecture, options: EngineConfig) -> TaskAdapter | None:
    """Return the adapter of a task that is merged into the weights; None if the checkpoint has no such adapters."""
    if (adapters := architecture.task_adapters) is None:
        return None
    task = options.default_adapter or adapters.tasks[0]
    if task not in adapters.tasks:
        raise LoadError(f"invalid default_adapter {task!r}; expected one of: {', '.join(adapters.tasks)}")
    logger.info("the adapter of task %s is merged; default_adapter selects another of %s", task, adapters.tasks)
    return TaskAdapter(adapters.folder, task)


def _build(make: Callable[[], Module], source: str) -> Module:
    """Build a module on the meta device; errors mean that config.json has invalid sizes."""
    try:
        with torch.device("meta"):
            return make()
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        details = f"{type(error).__name__}: {first_line(error)}"
        raise LoadError(f"{source}: invalid value in the config: {details}") from error


def _load_vision_tower(
    description: ModelDescription, vision: VisionSpec, weight_loader: WeightLoader, quantizer: WeightQuantizer | None
) -> VisionTower:
    tower = _build(vision.make_tower, f"{description.config.source}: vision_config")
    weight_loader.load(
        tower,
        weight_loader.with_prefix((vision.weights, *vision.alternative_weights), vision.prefixes),
        num_layers=vision.num_layers,
        dtype=description.dtype.value,
        device=description.device.value,
        module_prefix="vision.",
        quantizer=quantizer,
    )
    return tower


def _load_span_head(description: ModelDescription, weight_loader: WeightLoader) -> EntityHead | None:
    if (spec := description.architecture.span_head) is None:
        return None
    head = _build(lambda: make_entity_head(spec), description.config.source)
    device = description.device.value
    table, num_layers = description.architecture.span_weights, spec.num_layers
    weight_loader.load(head, table, num_layers=num_layers, dtype=torch.float32, device=device)
    if head.rnn is not None:
        head.rnn.flatten_parameters()  # as cuDNN wants them; without effect on a CPU
    return head.eval()


def _with_output_sizes(description: ModelDescription, heads: Heads) -> ModelDescription:
    """Return the description with the embedding size of the stored projection, which is known only after loading."""
    layers = heads.token_projector
    if description.architecture.projection is None or not isinstance(layers, nn.Sequential):
        return description
    size = getattr(layers[-1], "out_features", description.plan.matryoshka.full_size)
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
    device, dtype = description.device.value, description.dtype.value
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
    projector = load_projector(description, None)
    pooler = Pooler(description.plan, Heads(projector, projector), description.head_dtype.value)
    return LoadedModel(description, backbone, pooler.eval(), tokenizer)


def _load_tensor_model(options: EngineConfig, description: ModelDescription) -> LoadedModel:
    """Load a plugin model, which has no tokenizer and no pooling."""
    config, dtype, device = description.config, description.dtype.value, description.device.value
    plugin = resolve_plugin_name(options, config)
    assert plugin is not None, "the plugin provides the architecture"
    model = load_tensor_model(plugin, description.entry.name, description.checkpoint, config, dtype, device)
    pooler = Pooler(description.plan, Heads(), description.head_dtype.value)
    return LoadedModel(description, model, pooler, empty_tokenizer_files())


def _load_tokenizer(options: EngineConfig, description: ModelDescription) -> TokenizerFiles:
    if not description.architecture.reads_texts:
        return empty_tokenizer_files()
    checkpoint = find_tokenizer(options, description)
    files = load_tokenizer_files(checkpoint, is_plain=has_plain_tokenizer(description))
    if (spec := description.architecture.span_head) is not None and spec.prompt.splits_as_gliner2:
        add_schema_tokens(files.tokenizer, description.config)
    elif spec is not None:
        add_prompt_tokens(files.tokenizer, description.config, spec)
    for token in description.architecture.required_tokens:
        if files.tokenizer.token_to_id(token) is None:
            raise LoadError(f"{checkpoint.folder}: the tokenizer has no token {token!r}, which scores need")
    if (suffix := description.sentence_transformers.text_suffix) is not None:
        append_suffix(files.tokenizer, suffix, str(checkpoint.folder))
    vocab_size = description.architecture.backbone.vocab_size
    check_tokenizer(files, description.config, vocab_size, checkpoint.folder)
    if description.kind.value == "sequence":
        warn_of_token_types(files, description.config, checkpoint.folder)
    return files
