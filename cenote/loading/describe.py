"""Resolve all settings of a model before its weights are loaded, each with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError, PoolingError
from cenote.kernels.cpu.convert import supports_format
from cenote.kernels.cpu_features import CPUFeatures, cpu_features
from cenote.kernels.post_load import packs_int8, resolve_matmul_dtype, resolve_quantization
from cenote.loading.adapter_base import find_adapter_doubts, with_base_model
from cenote.loading.card_evidence import ModelUse, weigh_card
from cenote.loading.checkpoint import GLINER_CONFIG, Checkpoint, find_checkpoint
from cenote.loading.checkpoint_kind import detect_kind, find_entry, find_reward_head, head_of_kind, resolve_kind
from cenote.loading.colbert import LateInteraction, resolve_late_interaction
from cenote.loading.cross_encoder import check_cross_encoder, make_module_head
from cenote.loading.custom_code import apply_known_code, find_attention_doubt
from cenote.loading.default_model import HUB_NAME, SHORT_NAME, add_install_hint, find_default_model
from cenote.loading.encoder_pooling import apply_known_encoder
from cenote.loading.gliner import read_gliner_config
from cenote.loading.gliner2 import read_gliner2_config
from cenote.loading.hf_config import image_length, read_config, resolve_dtype, resolve_head_dtype, resolve_max_length
from cenote.loading.kalm_reranker import with_kalm_settings
from cenote.loading.matryoshka import resolve_matryoshka
from cenote.loading.model_card import ModelCard
from cenote.loading.model_description import TASKS_BY_KIND, ModelDescription
from cenote.loading.model_prompts import read_model_prompts
from cenote.loading.module_list import MODULES_FILE, locate_encoder
from cenote.loading.quantized.methods import read_quantization_config, stores_fp8
from cenote.loading.rerankers import RerankerSettings, detect_reranker
from cenote.loading.sentence_transformers import SentenceTransformersFiles, read_sentence_transformers_files
from cenote.loading.static_embeddings import (
    read_model2vec_settings,
    read_static_config,
    resolve_static_length,
)
from cenote.loading.tensor_model import SINGLE_TOKEN_LENGTH
from cenote.loading.unnamed_heads import find_head_doubt, find_unnamed_reranker
from cenote.loading.unread_heads import refuse_unknown_reranker, refuse_unread_head
from cenote.loading.v_splade import read_v_splade_config
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.ignored_keys import without_ignored_keys
from cenote.models.registry import EXACT_NAMES, ArchitectureEntry, CheckpointKind, has_prescaled_rope, supports_float16
from cenote.pooling.activations import ACTIVATION_BY_LABELS, resolve_classification_activation
from cenote.pooling.plan import NORMALIZE_BY_DEFAULT, PoolingFileSettings, resolve_plan
from cenote.protocol.names import get_public_name
from cenote.protocol.params import Task

# merged checkpoints of jina-embeddings-v4, by name: their files do not say how images are pooled
MERGED_JINA_V4 = "jina-embeddings-v4-vllm-"
# positions are relative, and the gliner package limits the number of words only: most texts of that many fit


def describe_model(options: EngineConfig, route: str | None = None, *, needs_weights: bool = True) -> ModelDescription:
    """Resolve all settings; `needs_weights=False` downloads configuration and tokenizer files only.

    `route` is that of a model with a Router, None: its default.
    """
    checkpoint = locate_encoder(_find_checkpoint(options, needs_weights), route)
    if (values := read_gliner_config(checkpoint, options.hf_overrides, options.hub)) is not None:
        config = read_config(checkpoint, options.hf_overrides, values, GLINER_CONFIG)
    else:
        values = (
            read_v_splade_config(checkpoint)
            or read_gliner2_config(checkpoint)
            or read_static_config(checkpoint, needs_weights=needs_weights)
        )
        config = read_config(checkpoint, options.hf_overrides, values)
    try:
        return _describe_config(options, checkpoint, config)
    except (TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        # values of a handwritten file can have any type
        raise LoadError(f"{config.source}: invalid value in the config: {type(error).__name__}: {error}") from error


def _describe_config(options: EngineConfig, checkpoint: Checkpoint, config: HFConfig) -> ModelDescription:
    config, code_doubt = apply_known_code(checkpoint, config)
    config = with_kalm_settings(checkpoint, config)
    entry = find_entry(options, config)
    family = entry.family(without_ignored_keys(config))
    files = read_model2vec_settings(config, read_sentence_transformers_files(checkpoint) or SentenceTransformersFiles())
    family, files = apply_known_encoder(options, checkpoint, config, family, files)
    family = family if files.adds_special_tokens else replace(family, adds_special_tokens=False)
    refuse_unread_head(options, checkpoint, config, files)
    unnamed_reranker = find_unnamed_reranker(checkpoint, config, entry, family, files)
    if unnamed_reranker is not None:
        config = HFConfig({"num_labels": 1, **config.values}, config.source)
        entry = replace(entry, kind=unnamed_reranker.value)
    if files.score_head is not None:
        family = replace(family, sequence_head=make_module_head(files))
    one_label = _resolve_num_labels(config, _read_labels(config), "sequence", family.sequence_head) == 1
    card = ModelCard.from_checkpoint(checkpoint)
    reranker = detect_reranker(options, checkpoint, config, entry, family, files, card, has_one_label=one_label)
    refuse_unknown_reranker(options, checkpoint, config, reranker)
    from_tokens = reranker.labels
    if from_tokens is not None and family.language_model is not None:
        family = family.language_model
    from_files = unnamed_reranker or detect_kind(checkpoint, entry, files)
    kind = resolve_kind(options, entry, family, from_tokens, from_files)
    check_cross_encoder(options, checkpoint, kind.value, files)
    if files.score_head is not None and kind.value != "sequence":  # converted by an option: the head is not used
        files = replace(files, projector=(), score_head=None)
    if kind.value == "reward":
        family = replace(family, reward_head=find_reward_head(checkpoint, entry, family))
    late_interaction = None
    if kind.value == "multi_vector":
        late_interaction = resolve_late_interaction(
            options.plain_late_interaction,
            checkpoint,
            config,
            files,
            family.late_interaction_defaults,
            family.query_format,
        )
    max_length = (
        image_length(family.backbone)
        if not family.reads_texts
        else resolve_max_length(
            config,
            checkpoint,
            encoder_max_length=resolve_static_length(checkpoint, entry)
            if family.is_static
            else _encoder_max_length(kind.value, entry, family, files, late_interaction),
            requested=options.max_model_len,
            position_offset=family.backbone.position_offset,
            num_learned_positions=family.backbone.num_learned_positions,
            has_prescaled_rope=has_prescaled_rope(config.get("model_type")),
        )
    )
    architecture = replace(family, backbone=replace(family.backbone, max_positions=max_length.value))
    head = head_of_kind(kind.value, architecture)
    labels = _read_labels(config) if head is not None and kind.value in ("sequence", "token", "reward") else None
    if labels and len(labels) != _resolve_num_labels(config, labels, kind.value, head):
        labels = None  # those of the base model
    device = _resolve_device(next(iter(options.devices), options.device))
    cpu = cpu_features()
    dtype = resolve_dtype(
        config,
        _requested_dtype(options, family, cpu),
        device.value.type,
        native_bf16=cpu.has_bfloat16,
        supports_float16=supports_float16(config.get("model_type")),
        multiplies_float16=supports_format("float16"),
    )
    tasks = _with_default_first(_tasks_of_kind(kind.value, entry, family, files), options)
    step_tag = head.spec.step_tag_id if head is not None else None
    num_labels = from_tokens.num_labels if from_tokens else _resolve_num_labels(config, labels, kind.value, head)
    if labels is None and from_tokens is None and head is not None and kind.value in ("sequence", "token"):
        labels = [f"LABEL_{row}" for row in range(num_labels)]  # Transformers does not save its default names
    name = options.served_model_name or get_public_name(options.model or SHORT_NAME)
    described = ModelDescription(
        name=name,
        checkpoint=checkpoint,
        config=config,
        entry=entry,
        architecture=architecture,
        kind=kind,
        plan=resolve_plan(
            model=name,
            pooler_config=options.pooler_config,
            # the custom Transformer module of a model with task adapters pools and normalizes itself
            file_settings=None if family.task_adapters else _pooling_files(files, kind.value, tasks),
            method=_default_pooling(kind.value, architecture, entry, checkpoint.name),
            activation=_resolve_activation(kind, head, config, files, reranker),
            tasks=tasks,
            matryoshka=resolve_matryoshka(config, checkpoint, files, kind.value, architecture, options),
            no_activation_tasks=_no_activation_tasks(kind.value, head, tasks),
            step_tag=None if step_tag is None else Sourced(step_tag, f"{entry.name}'s classifier"),
            logit_mean=None if head is None else head.logit_mean,
            num_labels=num_labels,
            normalize=_default_normalize(kind.value, architecture, entry),
        ),
        model_tasks=tasks,
        num_labels=num_labels,
        labels=labels,
        token_labels=from_tokens,
        score_template=reranker.template,
        sentence_transformers=files,
        prompts=read_model_prompts(options, config, files, architecture, has_role_prompts=kind.value == "multi_vector"),
        late_interaction=late_interaction,
        max_length=max_length,
        device=device,
        dtype=dtype,
        head_dtype=resolve_head_dtype(config, dtype.value, device.value.type, native_bf16=cpu.has_bfloat16),
        matmul_dtype=resolve_matmul_dtype(options.dtype, dtype.value, device.value),
        quantization=resolve_quantization(
            options.quantization,
            device.value,
            cpu,
            dtype.value,
            stores_fp8=stores_fp8(read_quantization_config(checkpoint)),
        ),
        deterministic=options.deterministic,
        doubts=tuple(
            filter(
                None,
                (
                    code_doubt,
                    *files.doubts,
                    find_attention_doubt(config, entry, architecture),
                    find_head_doubt(checkpoint, entry, kind, files),
                    *architecture.doubts,
                    *find_adapter_doubts(checkpoint),
                ),
            )
        ),
    )
    return _weigh_card(options, described, card)


def _weigh_card(options: EngineConfig, model: ModelDescription, card: ModelCard) -> ModelDescription:
    """Return the description with what its model card says; raise LoadError if that shows that it is wrong."""
    kind, files, pooling = model.kind, model.sentence_transformers, model.plan.seq_pooling_types
    is_chosen = kind.source.startswith("convert") or kind.value in ("causal", "tensors")
    is_declared = is_chosen or any(
        (files.pooling, files.splade, files.multi_vector, files.logit_score, files.score_head)
    )
    has_pair_prompt = (
        model.architecture.pairs_with_separator or model.score_template or options.score_template == "none"
    )
    # architectures with a name of their own are implemented after one published model
    is_default = pooling.source.startswith("default of") and model.entry.name not in EXACT_NAMES
    use = ModelUse(
        kind=kind.value,
        architecture=model.entry.name,
        config_file=model.config.source,
        is_declared=is_declared,
        is_converted=model.entry.kind == "causal" and kind.value == "embed" and not is_declared,
        default_pooling=pooling.value[0] if is_default else None,
        normalizes_by_default=model.plan.use_activation == NORMALIZE_BY_DEFAULT,
        has_modules=model.checkpoint.find_file(MODULES_FILE) is not None,
        lacks_pair_prompt="score" in model.plan.supported_tasks and not (has_pair_prompt or is_declared),
    )
    origin = str(model.config.get("_name_or_path", "")).rstrip("/").rpartition("/")[2]
    evidence = weigh_card(card, (*model.checkpoint.candidate_names, origin), use)
    if evidence.refusal is not None:
        raise LoadError(evidence.refusal)
    return replace(model, card=evidence, doubts=(*model.doubts, *evidence.doubts))


def _find_checkpoint(options: EngineConfig, needs_weights: bool) -> Checkpoint:
    if options.model is not None:
        found = find_checkpoint(options.model, revision=options.revision, hub=options.hub, needs_weights=needs_weights)
        return with_base_model(found, options.hf_overrides, options.hub, needs_weights=needs_weights)
    try:
        found = find_checkpoint(find_default_model(), hub=options.hub)
    except LoadError as error:
        raise add_install_hint(error) from error
    return replace(found, name=HUB_NAME)


def _tasks_of_kind(
    kind: CheckpointKind, entry: ArchitectureEntry, family: Architecture, files: SentenceTransformersFiles
) -> tuple[Task, ...]:
    if files.score_head is not None:
        return ("classify",)  # its modules were trained on pooled states
    if kind == "sequence" and family.pair_lengths is not None:
        return ("classify",)  # it reads the last state of its decoder
    if kind == "sequence" and family.sequence_head is not None and family.sequence_head.spec.gating is not None:
        return ("classify",)  # it reads two states of a sequence
    if kind == "sparse" and family.is_static:
        return ("embed", "sparse_embed")
    if kind == "masked" and not family.defaults_to_mlm:
        return (*TASKS_BY_KIND["embed"], "token_classify")
    # the Transformers backend has no logits per token for sequence classifiers
    return ("classify",) if kind == "sequence" and not entry.is_native else TASKS_BY_KIND[kind]


def _pooling_files(
    files: SentenceTransformersFiles, kind: CheckpointKind, tasks: Sequence[Task]
) -> PoolingFileSettings | None:
    if files.score_head is not None:
        return PoolingFileSettings(files.pooling, None, files.includes_prompt)
    if "embed" not in tasks and not (kind == "multi_vector" and files.multi_vector):
        return None  # the files describe an embedder, but the model is used otherwise
    return PoolingFileSettings(files.pooling, files.normalize, files.includes_prompt)


def _encoder_max_length(
    kind: CheckpointKind,
    entry: ArchitectureEntry,
    family: Architecture,
    files: SentenceTransformersFiles,
    late_interaction: LateInteraction | None,
) -> Sourced[int] | None:
    if kind == "tensors":
        return SINGLE_TOKEN_LENGTH
    if files.max_length is None and family.max_length is not None:
        return Sourced(family.max_length, f"default of {entry.name}")
    # PyLate saves the length of the last inputs here, not a limit
    return files.max_length if late_interaction is None or late_interaction.settings is None else None


def _with_default_first(tasks: tuple[Task, ...], options: EngineConfig) -> tuple[Task, ...]:
    """Return the tasks with the one of the deprecated option `task` first, if the model has it.

    With ALL or STEP pooling, that option selected a row per token.
    """
    default = next((task for task in tasks if task == options.task), tasks[0])
    if options.task is not None and options.pooler_config.tok_pooling_type is not None:
        default = next((task for task in tasks if task == f"token_{default}"), default)
    return tuple(sorted(tasks, key=lambda task: task != default))


def _resolve_activation(
    kind: Sourced[CheckpointKind],
    head: Head | None,
    config: HFConfig,
    files: SentenceTransformersFiles,
    reranker: RerankerSettings,
) -> Sourced[str]:
    if kind.value == "hybrid":
        return Sourced("relu", kind.source)  # lexical weights are not negative
    if kind.value in ("reward", "entities") and head is None:
        return Sourced("identity", kind.source)  # hidden states, not logits
    if head is not None and head.activation is not None:
        return Sourced(head.activation, kind.source)
    recipe = reranker.recipe
    # the score of most published rerankers is a probability, whatever Sentence Transformers files say
    own = {} if recipe is not None and recipe.activation is None else _activation_from_files(files)
    found = resolve_classification_activation({"num_labels": None, **config.values, **own})
    if recipe is not None and recipe.activation is not None and found.source == ACTIVATION_BY_LABELS:
        return Sourced(recipe.activation, f"the score of {recipe.name}")
    return found


def _no_activation_tasks(kind: CheckpointKind, head: Head | None, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return the tasks that return raw values unless a request sets use_activation."""
    if kind == "listwise":
        return tasks
    return (
        tuple(task for task in tasks if "classify" in task) if head is not None and not head.applies_activation else ()
    )


def _default_pooling(
    kind: CheckpointKind, architecture: Architecture, entry: ArchitectureEntry, model: str
) -> Sourced[str]:
    head = architecture.sequence_head
    if kind == "sequence" and head is not None and head.spec.pooling is not None:
        return Sourced(head.spec.pooling, f"{entry.name}'s classifier")
    # jina-embeddings-v4-vllm-retrieval and its siblings: the architecture is that of Qwen, and no file has the pooling
    if MERGED_JINA_V4 in model and architecture.vision is not None:
        return Sourced("IMAGE_MEAN", f"the model name, {MERGED_JINA_V4}*")
    return Sourced(architecture.pooling, f"default of {entry.name}")


def _default_normalize(kind: CheckpointKind, architecture: Architecture, entry: ArchitectureEntry) -> Sourced[bool]:
    if kind == "embed" and not architecture.normalize:
        return Sourced(False, f"default of {entry.name}")
    return NORMALIZE_BY_DEFAULT


def _activation_from_files(files: SentenceTransformersFiles) -> dict[str, dict[str, str]]:
    """Return the activation that newer cross-encoders store in config_sentence_transformers.json."""
    return {"sentence_transformers": {"activation_fn": files.activation}} if files.activation else {}


def _read_labels(config: HFConfig) -> list[str] | None:
    names = config.get("id2label")
    if names is None:
        return None
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError):
        raise LoadError(f"{config.source}: id2label is {names!r}; expected a mapping of numbers to names") from None


def _resolve_num_labels(config: HFConfig, labels: list[str] | None, kind: CheckpointKind, head: Head | None) -> int:
    if kind in ("masked", "sparse", "causal"):
        return int(config.vocab_size)
    if kind == "hybrid":
        return 1
    if head is not None and head.spec.num_labels is not None:
        return head.spec.num_labels
    count = config.get("num_labels") or (len(labels) if labels else 2)  # Transformers does not save the default of 2
    return int(count)


def _requested_dtype(options: EngineConfig, family: Architecture, cpu: CPUFeatures) -> str:
    if options.dtype != "auto":
        return options.dtype
    if family.is_static:
        return "float32"  # 16 bits would save nothing
    # on these CPUs int8 layers have inputs and results in float32
    has_float32_int8 = options.quantization == "int8" and packs_int8(torch.float32, cpu)
    return "float32" if has_float32_int8 else "auto"


def _resolve_device(requested: str | None) -> Sourced[torch.device]:
    if requested is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
        return Sourced(torch.device(name), "detected hardware")
    try:
        device = torch.device(requested)
    except RuntimeError:
        raise LoadError(f"invalid device={requested!r}; expected one of: cpu, cuda, cuda:0, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise LoadError(f"unsupported device={requested!r}; expected one of: cpu, cuda, cuda:0, ...")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise LoadError(f"device={requested!r} does not exist: torch {torch.__version__} found {count} GPUs")
    return Sourced(device, "device")
