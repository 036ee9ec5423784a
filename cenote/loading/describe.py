"""Everything that is decided about a model before its weights are read, each decision with who took it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cenote.config.engine import Convert, EngineConfig, PoolerConfig, Quantization, Sourced
from cenote.errors import LoadError, PoolingError
from cenote.kernels.cpu_features import cpu_features
from cenote.kernels.post_load import resolve_quantization
from cenote.loading.causal_lm_classifier import TokenLabels
from cenote.loading.checkpoint import Checkpoint, find_checkpoint
from cenote.loading.checkpoint_kind import recognise
from cenote.loading.colbert import LateInteraction, read_late_interaction
from cenote.loading.default_model import SHORT_NAME, default_model, with_ways_to_get_it
from cenote.loading.hf_config import (
    architectures,
    head_dtype,
    read_config,
    resolve_dtype,
    resolve_max_length,
)
from cenote.loading.model_prompts import Prompts, read_prompts
from cenote.loading.rerankers import Reranker, find_reranker
from cenote.loading.sentence_transformers import SentenceTransformers, read_modules
from cenote.loading.tensor_model import ONE_INPUT, offered_entry, plugin_named
from cenote.loading.transformers_backend import INSTALL, fallback_entry, is_available, knows
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.registry import Entry, Form, UnknownArchitecture, find, fits_float16, is_stretched, names_of_type
from cenote.pooling.activations import classification_activation
from cenote.pooling.plan import Matryoshka, PoolingFiles, PoolingPlan, resolve_plan
from cenote.protocol.input_types import ScoreTemplate
from cenote.protocol.requests import ScoreType, Task

# what a model may do, its default first, by what it is used as
TASKS: dict[Form, tuple[Task, ...]] = {
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
# how it compares texts, where another way than the first that its tasks allow is its own
SCORE_TYPES: dict[Form, ScoreType] = {
    "sparse": "sparse",
    "multi_vector": "late-interaction",
    "listwise": "listwise",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What programs and plugins ask a loaded model about itself."""

    model: str
    folder: Path  # where its files lie
    hf_config: HFConfig  # config.json, with hf_overrides applied
    max_model_len: int
    embedding_size: int
    dtype: torch.dtype
    pooler_config: PoolerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model, decided but not loaded."""

    name: str  # what messages and replies call it
    checkpoint: Checkpoint
    config: HFConfig
    entry: Entry
    architecture: Architecture
    kind: Sourced[Form]
    plan: PoolingPlan
    num_labels: int
    labels: list[str] | None
    token_labels: TokenLabels | None
    score_template: Sourced[ScoreTemplate] | None  # joins query and document; None: as the tokenizer joins two texts
    sentence_transformers: SentenceTransformers
    prompts: Prompts
    late_interaction: LateInteraction | None  # None also for a ColBERT that reads plain texts
    max_length: Sourced[int]
    device: Sourced[torch.device]
    dtype: Sourced[torch.dtype]
    head_dtype: Sourced[torch.dtype]
    quantization: Sourced[Quantization | None]

    @property
    def head(self) -> Head | None:
        """The family's classifier for what this model is used as."""
        return _head(self.kind.value, self.architecture)

    @property
    def score_type(self) -> ScoreType | None:
        return SCORE_TYPES.get(self.kind.value)

    @property
    def default_task(self) -> Task:
        return self.plan.tasks[0]

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig(
            model=self.name,
            folder=self.checkpoint.folder,
            hf_config=self.config,
            max_model_len=self.max_length.value,
            embedding_size=self.plan.matryoshka.full_size,
            dtype=self.dtype.value,
            pooler_config=self.plan.defaults,
        )


def describe(options: EngineConfig) -> Description:
    checkpoint = _checkpoint(options)
    config = read_config(checkpoint, options.hf_overrides)
    try:
        return _describe(options, checkpoint, config)
    except (TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError, ValueError) as error:
        if isinstance(error, PoolingError):
            raise
        # a file written by hand can hold anything anywhere
        raise LoadError(f"{config.source}: a value in it makes no sense: {type(error).__name__}: {error}") from error


def _describe(options: EngineConfig, checkpoint: Checkpoint, config: HFConfig) -> Description:
    entry = _entry(options, config)
    family = entry.family(config)
    files = read_modules(checkpoint) or SentenceTransformers()
    one_label = _num_labels(config, _labels(config), "sequence", family.sequence_head) == 1
    reranker = find_reranker(options, checkpoint, config, entry, family, files, one_label=one_label)
    from_tokens = reranker.labels
    kind = _kind(options, entry, family, from_tokens, recognise(checkpoint, entry, files))
    late_interaction = None
    if kind.value == "multi_vector" and not _plain(options, config):
        late_interaction = read_late_interaction(checkpoint, config, files, family.late_interaction)
    max_length = resolve_max_length(
        config,
        checkpoint,
        encoder_max_length=_encoder_length(kind.value, files, late_interaction),
        user=options.max_model_len,
        position_offset=family.backbone.position_offset,
        learned_positions=family.backbone.learned_positions,
        stretched=is_stretched(config.get("model_type")),
    )
    architecture = replace(family, backbone=replace(family.backbone, max_positions=max_length.value))
    head = _head(kind.value, architecture)
    labels = _labels(config) if kind.value in ("sequence", "token", "reward") else None
    device = _device(options.device)
    cpu = cpu_features()
    dtype = resolve_dtype(
        config,
        options.dtype,
        device.value.type,
        native_bf16=cpu.bfloat16,
        float16=fits_float16(config.get("model_type")),
    )
    tasks, step_tag = _tasks(kind.value, entry, family), head.spec.step_tag_id if head is not None else None
    name = options.served_model_name or (options.model if options.model else SHORT_NAME)
    return Description(
        name=name,
        checkpoint=checkpoint,
        config=config,
        entry=entry,
        architecture=architecture,
        kind=kind,
        plan=resolve_plan(
            model=name,
            user=options.pooler_config,
            files=_pooling_files(files, kind.value, tasks),
            method=_default_method(kind.value, architecture, entry),
            activation=_activation(kind, config, files, reranker),
            tasks=tasks,
            matryoshka=_matryoshka(config, files, kind.value, architecture, options),
            inactive=_inactive(kind.value, head, tasks),
            step_tag=None if step_tag is None else Sourced(step_tag, f"{entry.name}'s classifier"),
            logit_mean=None if head is None else head.logit_mean,
        ),
        num_labels=from_tokens.num_labels if from_tokens else _num_labels(config, labels, kind.value, head),
        labels=labels,
        token_labels=from_tokens,
        score_template=reranker.template,
        sentence_transformers=files,
        prompts=read_prompts(options, config, files, by_role=kind.value == "multi_vector"),
        late_interaction=late_interaction,
        max_length=max_length,
        device=device,
        dtype=dtype,
        head_dtype=head_dtype(config, dtype.value, device.value.type, native_bf16=cpu.bfloat16),
        quantization=resolve_quantization(options.quantization, device.value, cpu),
    )


def _entry(options: EngineConfig, config: HFConfig) -> Entry:
    """Whose model it is: a family of ours where there is one, else the Transformers library's."""
    names = architectures(config) or names_of_type(str(config.get("model_type", "")))
    if options.model_impl == "transformers":
        return fallback_entry(names, config.source)
    try:
        return find(names, config.source)
    except UnknownArchitecture as error:
        if (offered := offered_entry(plugin_named(options, config), names)) is not None:
            return offered
        if options.model_impl != "auto" or not names:
            raise
        if not is_available():
            raise LoadError(f"{error.message}. The Transformers library may run it: {INSTALL}") from None
        if not knows(names, config):
            raise
        return fallback_entry(names, config.source)


def _checkpoint(options: EngineConfig) -> Checkpoint:
    if options.model is not None:
        return find_checkpoint(options.model, revision=options.revision, token=options.hf_token)
    try:
        return find_checkpoint(default_model(), token=options.hf_token)
    except LoadError as error:
        raise with_ways_to_get_it(error) from error


def _kind(
    options: EngineConfig,
    entry: Entry,
    architecture: Architecture,
    from_tokens: TokenLabels | None,
    from_files: Sourced[Form] | None,
) -> Sourced[Form]:
    """What the model is used as: the flag says, else its files, else its architecture's name."""
    if options.runner == "generate":
        raise LoadError("runner='generate' is not offered: Cenote runs pooling models; use 'pooling' or 'auto'")
    if entry.form == "tensors":
        return Sourced(entry.form, f"architecture {entry.name}, of the plugin's package")
    judged: Form = "reward" if entry.form == "reward" and architecture.reward_head is not None else "sequence"
    by_flag: dict[Convert, Form] = {"embed": "embed", "classify": "sequence", "reward": judged}
    if entry.form == "causal" and options.convert in ("auto", "reward") and options.pooler_config.returned_token_ids:
        kind: Sourced[Form] = Sourced("causal", "pooler config returned_token_ids")  # some of its words are the answer
    elif options.convert in by_flag:
        kind = Sourced(by_flag[options.convert], f"convert {options.convert}")
    elif from_tokens is not None:
        kind = Sourced("sequence", from_tokens.source)
    elif from_files is not None:
        kind = from_files
    elif entry.form == "causal":
        if options.convert == "none":
            raise LoadError(
                "This model does not support `--runner pooling`. "
                "You can pass `--convert <embed|classify> to adapt it into a pooling model."
            )
        kind = Sourced("embed", f"architecture {entry.name}, converted")
    else:
        kind = Sourced(entry.form, f"architecture {entry.name}")
    if kind.value in ("reward", "masked") and _head(kind.value, architecture) is None:
        kind = Sourced("embed", f"architecture {entry.name}")
    if kind.value == "sparse":
        _check_sparse(options, entry, architecture)
    if not entry.native and (from_tokens is not None or (kind.value != entry.form and kind.value != "embed")):
        raise LoadError(f"{entry.name} is run by the Transformers library, which cannot make a classifier of it")
    if kind.value == "sequence" and architecture.sequence_head is None:
        raise LoadError(f"{entry.name} has no sequence classifier to convert to; use convert='embed'")
    return kind


def _check_sparse(options: EngineConfig, entry: Entry, architecture: Architecture) -> None:
    if architecture.masked_head is None:
        raise LoadError(f"{entry.name} has no head over its vocabulary, which SPLADE needs; use convert='embed'")
    if options.pooler_config.enable_chunked_processing:
        raise LoadError(
            "chunked processing takes the mean of embeddings, and the weights of a SPLADE model are no embedding; "
            "leave enable_chunked_processing out"
        )


def _tasks(kind: Form, entry: Entry, family: Architecture) -> tuple[Task, ...]:
    if kind == "masked" and not family.fills_masks:
        return (*TASKS["embed"], "token_classify")
    # what the library says of a whole sequence it does not say of one token
    return ("classify",) if kind == "sequence" and not entry.native else TASKS[kind]


def _pooling_files(files: SentenceTransformers, kind: Form, tasks: Sequence[Task]) -> PoolingFiles | None:
    if "embed" not in tasks and not (kind == "multi_vector" and files.multi_vector):
        return None  # they speak of another model than what this one is used as
    return PoolingFiles(files.pooling, files.normalize, files.include_prompt)


def _plain(options: EngineConfig, config: HFConfig) -> bool:
    return options.plain_late_interaction or bool(config.get("plain_late_interaction", False))


def _encoder_length(
    kind: Form, files: SentenceTransformers, late_interaction: LateInteraction | None
) -> Sourced[int] | None:
    if kind == "tensors":
        return ONE_INPUT
    # the length that PyLate leaves there is that of the last texts it read
    return files.max_length if late_interaction is None else None


def _head(kind: Form, architecture: Architecture) -> Head | None:
    heads: dict[Form, Head | None] = {
        "sequence": architecture.sequence_head,
        "token": architecture.token_head,
        "reward": architecture.reward_head,
        "masked": architecture.masked_head,
        "sparse": architecture.masked_head,
    }
    return heads.get(kind)


def _activation(kind: Sourced[Form], config: HFConfig, files: SentenceTransformers, reranker: Reranker) -> Sourced[str]:
    if kind.value == "hybrid":
        return Sourced("relu", kind.source)  # a word that does not matter weighs nothing
    own = {} if reranker.is_known else _own_activation(files)
    return classification_activation({"num_labels": None, **config.values, **own})


def _inactive(kind: Form, head: Head | None, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """The tasks that answer with plain numbers unless somebody asks for more."""
    if kind == "listwise":
        return tasks
    return tuple(task for task in tasks if "classify" in task) if head is not None and not head.activates else ()


def _default_method(kind: Form, architecture: Architecture, entry: Entry) -> Sourced[str]:
    head = architecture.sequence_head
    if kind == "sequence" and head is not None and head.spec.pooling is not None:
        return Sourced(head.spec.pooling, f"{entry.name}'s classifier")
    return Sourced(architecture.pooling, f"default of {entry.name}")


def _own_activation(files: SentenceTransformers) -> dict[str, dict[str, str]]:
    """Newer cross-encoders name their activation beside the model instead of inside config.json."""
    return {"sentence_transformers": {"activation_fn": files.activation}} if files.activation else {}


def _matryoshka(
    config: HFConfig, files: SentenceTransformers, kind: Form, architecture: Architecture, options: EngineConfig
) -> Matryoshka:
    if kind == "sparse":
        return Matryoshka(False, (), config.vocab_size)
    sizes = tuple(config.get("matryoshka_dimensions", ()))
    widths = [step.out_features for step in files.projector if hasattr(step, "out_features")]
    by_flag = options.pooler_config.seq_pooling_type is not None
    methods = len(files.pooling.value) if files.pooling and not by_flag else 1
    # some families call the width of their tables so
    named = None if architecture.backbone.embedding_size is not None else config.get("embedding_size")
    full = named or (widths[-1] if widths else architecture.states_size * methods)
    return Matryoshka(bool(sizes) or bool(config.get("is_matryoshka", False)), sizes, full)


def _labels(config: HFConfig) -> list[str] | None:
    names = config.get("id2label")
    if names is None:
        return None
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError):
        raise LoadError(f"{config.source}: id2label is {names!r}, not names by number") from None


def _num_labels(config: HFConfig, labels: list[str] | None, kind: Form, head: Head | None) -> int:
    if kind in ("masked", "sparse", "causal"):
        return int(config.vocab_size)
    if kind == "hybrid":
        return 1
    if head is not None and head.spec.num_labels is not None:
        return head.spec.num_labels
    count = config.get("num_labels") or (len(labels) if labels else 2)  # Transformers leaves the default of 2 unwritten
    return int(count)


def _device(asked: str | None) -> Sourced[torch.device]:
    if asked is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
        return Sourced(torch.device(name), "what this machine has")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise LoadError(f"device={asked!r} is unknown; there are: cpu, cuda, cuda:0, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise LoadError(f"device={asked!r} is not offered; there are: cpu, cuda, cuda:0, ...")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise LoadError(f"device={asked!r}: torch {torch.__version__} sees {count} GPUs here, counted from cuda:0")
    return Sourced(device, "device")
