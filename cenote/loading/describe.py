"""Everything that is decided about a model before its weights are read, each decision with who took it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from cenote.config import Convert, EngineConfig, PoolerConfig, Sourced
from cenote.errors import LoadError, PoolingError
from cenote.loading.checkpoint import Checkpoint, find_checkpoint
from cenote.loading.convert import TokenLabels, token_labels
from cenote.loading.default_model import default_model, with_ways_to_get_it
from cenote.loading.hf_config import (
    architectures,
    has_native_bf16,
    head_dtype,
    read_config,
    resolve_dtype,
    resolve_max_length,
)
from cenote.loading.sentence_transformers import SentenceTransformers, read_modules
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.catalog import Entry, find
from cenote.pooling.activations import classification_activation
from cenote.pooling.resolve import Matryoshka, PoolingFiles, PoolingPlan, resolve_plan
from cenote.request import Task

Kind = Literal["embed", "sequence", "token"]
TASKS: dict[Kind, tuple[Task, ...]] = {
    "embed": ("embed", "token_embed"),
    "sequence": ("classify", "token_classify"),
    "token": ("token_classify",),
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
    kind: Sourced[Kind]
    plan: PoolingPlan
    num_labels: int
    labels: list[str] | None
    token_labels: TokenLabels | None
    sentence_transformers: SentenceTransformers
    max_length: Sourced[int]
    device: Sourced[torch.device]
    dtype: Sourced[torch.dtype]
    head_dtype: Sourced[torch.dtype]

    @property
    def prompts(self) -> Mapping[str, str]:
        return self.sentence_transformers.prompts

    @property
    def head(self) -> Head | None:
        """The family's classifier for what this model is used as."""
        if self.kind.value == "embed":
            return None
        return self.architecture.token_head if self.kind.value == "token" else self.architecture.sequence_head

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
    entry = find(architectures(config), config.source)
    family = entry.family(config)
    files = read_modules(checkpoint) or SentenceTransformers()
    max_length = resolve_max_length(
        config,
        checkpoint,
        encoder_max_length=files.max_length,
        user=options.max_model_len,
        position_offset=family.backbone.position_offset,
        learned_positions=family.backbone.learned_positions,
    )
    architecture = replace(family, backbone=replace(family.backbone, max_positions=max_length.value))
    from_tokens = token_labels(config)
    kind = _kind(options, entry, architecture, from_tokens)
    labels = _labels(config) if kind.value != "embed" else None
    device = _device(options.device)
    dtype = resolve_dtype(config, options.dtype, device.value.type, native_bf16=has_native_bf16())
    name = options.served_model_name or (options.model if options.model else "all-MiniLM-L6-v2")
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
            files=PoolingFiles(files.pooling, files.normalize, files.include_prompt) if kind.value == "embed" else None,
            method=_default_method(kind.value, architecture, entry),
            activation=classification_activation({"num_labels": None, **config.values, **_own_activation(files)}),
            tasks=TASKS[kind.value],
            matryoshka=_matryoshka(config, files, architecture.backbone.hidden_size, options),
        ),
        num_labels=from_tokens.num_labels if from_tokens else _num_labels(config, labels),
        labels=labels,
        token_labels=from_tokens,
        sentence_transformers=files,
        max_length=max_length,
        device=device,
        dtype=dtype,
        head_dtype=head_dtype(config, dtype.value),
    )


def _checkpoint(options: EngineConfig) -> Checkpoint:
    if options.model is not None:
        return find_checkpoint(options.model, revision=options.revision, token=options.hf_token)
    try:
        return find_checkpoint(default_model(), token=options.hf_token)
    except LoadError as error:
        raise with_ways_to_get_it(error) from error


def _kind(
    options: EngineConfig, entry: Entry, architecture: Architecture, from_tokens: TokenLabels | None
) -> Sourced[Kind]:
    """What the model is used as: the flag says, else its architecture's name."""
    if options.runner == "generate":
        raise LoadError("runner='generate' is not offered: Cenote runs pooling models; use 'pooling' or 'auto'")
    by_flag: dict[Convert, Kind] = {"embed": "embed", "classify": "sequence", "reward": "sequence"}
    if options.convert in by_flag:
        kind: Sourced[Kind] = Sourced(by_flag[options.convert], f"convert {options.convert}")
    elif from_tokens is not None:
        kind = Sourced("sequence", "classifier_from_token")
    elif entry.form == "causal":
        if options.convert == "none":
            raise LoadError(
                "This model does not support `--runner pooling`. "
                "You can pass `--convert <embed|classify> to adapt it into a pooling model."
            )
        kind = Sourced("embed", f"architecture {entry.name}, converted")
    else:
        kind = Sourced(entry.form, f"architecture {entry.name}")
    if kind.value == "sequence" and architecture.sequence_head is None:
        raise LoadError(f"{entry.name} has no sequence classifier to convert to; use convert='embed'")
    return kind


def _default_method(kind: Kind, architecture: Architecture, entry: Entry) -> Sourced[str]:
    head = architecture.sequence_head
    if kind == "sequence" and head is not None and head.spec.pooling is not None:
        return Sourced(head.spec.pooling, f"{entry.name}'s classifier")
    return Sourced(architecture.pooling, f"default of {entry.name}")


def _own_activation(files: SentenceTransformers) -> dict[str, dict[str, str]]:
    """Newer cross-encoders name their activation beside the model instead of inside config.json."""
    return {"sentence_transformers": {"activation_fn": files.activation}} if files.activation else {}


def _matryoshka(config: HFConfig, files: SentenceTransformers, hidden_size: int, options: EngineConfig) -> Matryoshka:
    sizes = tuple(config.get("matryoshka_dimensions", ()))
    widths = [step.out_features for step in files.projector if hasattr(step, "out_features")]
    by_flag = options.pooler_config.seq_pooling_type is not None
    methods = len(files.pooling.value) if files.pooling and not by_flag else 1
    full = config.get("embedding_size") or (widths[-1] if widths else hidden_size * methods)
    return Matryoshka(bool(sizes) or bool(config.get("is_matryoshka", False)), sizes, full)


def _labels(config: HFConfig) -> list[str] | None:
    names = config.get("id2label")
    if names is None:
        return None
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError):
        raise LoadError(f"{config.source}: id2label is {names!r}, not names by number") from None


def _num_labels(config: HFConfig, labels: list[str] | None) -> int:
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
