"""Resolve all settings of a model before its weights are loaded, each with its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from cenote.config.engine import EngineConfig, Quantization
from cenote.config.options import Sourced
from cenote.errors import LoadError, PoolingError
from cenote.kernels.cpu_features import cpu_features
from cenote.kernels.post_load import resolve_quantization
from cenote.loading.adapter_base import find_adapter_doubts, with_base_model
from cenote.loading.causal_lm_classifier import TokenLabels
from cenote.loading.checkpoint import Checkpoint, find_checkpoint
from cenote.loading.checkpoint_kind import detect_kind, find_entry, find_reward_head, head_of_kind, resolve_kind
from cenote.loading.colbert import LateInteraction, resolve_late_interaction
from cenote.loading.cross_encoder import check_cross_encoder, make_module_head
from cenote.loading.custom_code import apply_known_code, find_attention_doubt
from cenote.loading.default_model import SHORT_NAME, add_install_hint, find_default_model
from cenote.loading.hf_config import read_config, resolve_dtype, resolve_head_dtype, resolve_max_length
from cenote.loading.matryoshka import resolve_matryoshka
from cenote.loading.model_config import ModelConfig
from cenote.loading.model_prompts import ModelPrompts, read_model_prompts
from cenote.loading.module_list import locate_encoder
from cenote.loading.refused_models import refuse_by_name, refuse_unread_head
from cenote.loading.rerankers import RerankerSettings, detect_reranker
from cenote.loading.router import Route
from cenote.loading.sentence_transformers import SentenceTransformersFiles, read_sentence_transformers_files
from cenote.loading.static_embeddings import (
    is_static,
    read_model2vec_settings,
    read_static_config,
    resolve_static_length,
)
from cenote.loading.tensor_model import SINGLE_TOKEN_LENGTH
from cenote.loading.unnamed_heads import find_head_doubt, find_unnamed_reranker
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.registry import ArchitectureEntry, CheckpointKind, has_prescaled_rope, supports_float16
from cenote.pooling.activations import resolve_classification_activation
from cenote.pooling.plan import NORMALIZE_BY_DEFAULT, PoolingFileSettings, PoolingPlan, resolve_plan
from cenote.protocol.input_types import ScoreTemplate
from cenote.protocol.params import ScoreType, Task

# supported tasks by kind, the default first
TASKS_BY_KIND: dict[CheckpointKind, tuple[Task, ...]] = {
    "embed": ("embed", "token_embed"),
    "sequence": ("classify", "token_classify"),
    "token": ("token_classify",),
    "reward": ("token_classify", "token_embed", "embed"),
    "masked": ("token_classify", "embed", "token_embed"),
    "sparse": ("embed", "token_embed", "sparse_embed"),
    "multi_vector": ("token_embed",),
    "hybrid": ("embed", "token_embed", "token_classify", "sparse_embed"),
    "listwise": ("token_embed",),
    "causal": ("token_classify",),
    "tensors": ("plugin",),
}
MERGED_JINA_V4 = "jina-embeddings-v4-vllm-"
# score type by kind, where it does not follow from the tasks
SCORE_TYPE_BY_KIND: dict[CheckpointKind, ScoreType] = {
    "sparse": "sparse",
    "multi_vector": "late-interaction",
    "listwise": "listwise",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model with all settings resolved, before loading."""

    name: str  # in messages and responses
    checkpoint: Checkpoint
    config: HFConfig
    entry: ArchitectureEntry
    architecture: Architecture
    kind: Sourced[CheckpointKind]
    plan: PoolingPlan
    model_tasks: tuple[Task, ...]  # tasks that the model supports, also those that the pooler config excludes
    num_labels: int
    labels: list[str] | None
    token_labels: TokenLabels | None
    score_template: Sourced[ScoreTemplate] | None  # joins query and document; None: the tokenizer's pair template
    sentence_transformers: SentenceTransformersFiles
    prompts: ModelPrompts
    late_interaction: LateInteraction | None  # of models that return one embedding per token
    max_length: Sourced[int]
    device: Sourced[torch.device]
    dtype: Sourced[torch.dtype]
    head_dtype: Sourced[torch.dtype]
    quantization: Sourced[Quantization | None]
    doubts: tuple[str, ...] = ()  # what may be wrong and how to correct it, one line each; logged as warnings at load

    @property
    def head(self) -> Head | None:
        """Return the head for the kind of this model."""
        return head_of_kind(self.kind.value, self.architecture)

    @property
    def score_type(self) -> ScoreType | None:
        return SCORE_TYPE_BY_KIND.get(self.kind.value)

    @property
    def has_role_formats(self) -> bool:
        """Whether queries and documents are formatted differently."""
        return self.late_interaction is not None and self.late_interaction.settings is not None

    @property
    def has_routes(self) -> bool:
        """Whether queries and documents are encoded by different modules."""
        return len(self.sentence_transformers.routes) > 1

    @property
    def other_routes(self) -> tuple[Route, ...]:
        """The routes of the model that this description does not cover: its default route does."""
        return self.sentence_transformers.routes[1:] if self.checkpoint.route is None else ()

    @property
    def divides_max_sim(self) -> bool:
        """Whether late-interaction scores are divided by the number of query embeddings."""
        return self.sentence_transformers.similarity_fn_name == "meanmaxsim"

    @property
    def pair_prompt(self) -> str:
        """The prompt of a cross-encoder, prepended to queries; a score template contains its instruction itself."""
        default, is_pair = self.prompts.default, self.kind.value == "sequence" and self.score_template is None
        return default.value if is_pair and default and self.sentence_transformers.messages is None else ""

    @property
    def default_task(self) -> Task:
        return self.plan.tasks[0]

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig(
            model=self.name,
            folder=self.checkpoint.folder,
            hf_config=_with_integer_labels(self.config),
            max_model_len=self.max_length.value,
            embedding_size=self.plan.matryoshka.full_size,
            dtype=self.dtype.value,
            head_dtype=self.head_dtype.value,
            pooling_plan=self.plan,
        )


def _with_integer_labels(config: HFConfig) -> HFConfig:
    """Return a config whose `id2label` has integer keys, as in Transformers; in JSON they are strings."""
    labels = config.get("id2label")
    if not isinstance(labels, Mapping) or not all(str(key).isdecimal() for key in labels):
        return config
    return HFConfig({**config.values, "id2label": {int(key): label for key, label in labels.items()}}, config.source)


def describe_model(options: EngineConfig, route: str | None = None, *, needs_weights: bool = True) -> ModelDescription:
    """Resolve all settings; `needs_weights=False` downloads configuration and tokenizer files only.

    `route` is that of a model with a Router, None: its default.
    """
    checkpoint = locate_encoder(_find_checkpoint(options, needs_weights), route)
    if not needs_weights and is_static(checkpoint):  # only the weights tell their sizes
        checkpoint = locate_encoder(_find_checkpoint(options, True), route)
    config = read_config(checkpoint, options.hf_overrides, read_static_config(checkpoint))
    try:
        return _describe_config(options, checkpoint, config)
    except (TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        # values of a handwritten file can have any type
        raise LoadError(f"{config.source}: invalid value in the config: {type(error).__name__}: {error}") from error


def _describe_config(options: EngineConfig, checkpoint: Checkpoint, config: HFConfig) -> ModelDescription:
    refuse_by_name(config)
    config, code_doubt = apply_known_code(checkpoint, config)
    entry = find_entry(options, config)
    family = entry.family(config)
    files = read_model2vec_settings(config, read_sentence_transformers_files(checkpoint) or SentenceTransformersFiles())
    refuse_unread_head(options, checkpoint, config, files)
    unnamed_reranker = find_unnamed_reranker(checkpoint, config, entry, family, files)
    if unnamed_reranker is not None:
        config = HFConfig({"num_labels": 1, **config.values}, config.source)
        entry = replace(entry, kind=unnamed_reranker.value)
    if files.score_head is not None:
        family = replace(family, sequence_head=make_module_head(files))
    one_label = _resolve_num_labels(config, _read_labels(config), "sequence", family.sequence_head) == 1
    reranker = detect_reranker(options, checkpoint, config, entry, family, files, has_one_label=one_label)
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
    max_length = resolve_max_length(
        config,
        checkpoint,
        encoder_max_length=resolve_static_length(checkpoint, entry)
        if family.is_static
        else _encoder_max_length(kind.value, files, late_interaction),
        requested=options.max_model_len,
        position_offset=family.backbone.position_offset,
        num_learned_positions=family.backbone.num_learned_positions,
        has_prescaled_rope=has_prescaled_rope(config.get("model_type")),
    )
    architecture = replace(family, backbone=replace(family.backbone, max_positions=max_length.value))
    head = head_of_kind(kind.value, architecture)
    labels = _read_labels(config) if head is not None and kind.value in ("sequence", "token", "reward") else None
    if files.score_head is not None and labels and len(labels) != _resolve_num_labels(config, None, kind.value, head):
        labels = None  # those of the base model
    device = _resolve_device(options.device)
    cpu = cpu_features()
    dtype = resolve_dtype(
        config,
        "float32" if family.is_static and options.dtype == "auto" else options.dtype,  # 16 bits would save nothing
        device.value.type,
        native_bf16=cpu.has_bfloat16,
        supports_float16=supports_float16(config.get("model_type")),
    )
    tasks = _with_default_first(_tasks_of_kind(kind.value, entry, family, files), options)
    step_tag = head.spec.step_tag_id if head is not None else None
    num_labels = from_tokens.num_labels if from_tokens else _resolve_num_labels(config, labels, kind.value, head)
    if labels is None and from_tokens is None and head is not None and kind.value in ("sequence", "token"):
        labels = [f"LABEL_{row}" for row in range(num_labels)]  # Transformers does not save its default names
    name = options.served_model_name or (options.model if options.model else SHORT_NAME)
    return ModelDescription(
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
        quantization=resolve_quantization(options.quantization, device.value, cpu),
        doubts=tuple(
            filter(
                None,
                (
                    code_doubt,
                    files.version_doubt,
                    find_attention_doubt(config, entry, architecture),
                    find_head_doubt(checkpoint, entry, kind, files),
                    reranker.doubt,
                    *architecture.doubts,
                    *find_adapter_doubts(checkpoint),
                ),
            )
        ),
    )


def _find_checkpoint(options: EngineConfig, needs_weights: bool) -> Checkpoint:
    if options.model is not None:
        found = find_checkpoint(
            options.model, revision=options.revision, token=options.hf_token, needs_weights=needs_weights
        )
        return with_base_model(found, options.hf_overrides, options.hf_token, needs_weights=needs_weights)
    try:
        return find_checkpoint(find_default_model(), token=options.hf_token)
    except LoadError as error:
        raise add_install_hint(error) from error


def _tasks_of_kind(
    kind: CheckpointKind, entry: ArchitectureEntry, family: Architecture, files: SentenceTransformersFiles
) -> tuple[Task, ...]:
    if files.score_head is not None:
        return ("classify",)  # its modules were trained on pooled states
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
    kind: CheckpointKind, files: SentenceTransformersFiles, late_interaction: LateInteraction | None
) -> Sourced[int] | None:
    if kind == "tensors":
        return SINGLE_TOKEN_LENGTH
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
    if kind.value == "reward" and head is None:
        return Sourced("identity", kind.source)  # hidden states, not logits
    own = {} if reranker.is_known else _activation_from_files(files)
    return resolve_classification_activation({"num_labels": None, **config.values, **own})


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
