"""The architecture of a model, and how the model is used: the second stage of loading."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.layers.spec import HeadSpec
from cenote.loading.checkpoint_kind import find_reward_head, head_of_kind, resolve_kind
from cenote.loading.colbert import LateInteraction, resolve_late_interaction
from cenote.loading.hf_config import read_architectures
from cenote.loading.layouts.layout import Layout
from cenote.loading.plugin_models import find_plugin_entry, resolve_plugin_name
from cenote.loading.rerankers import RerankerSettings, detect_reranker, refuse_unknown_reranker
from cenote.loading.sentence_transformers import DenseModule, SentenceTransformersFiles
from cenote.loading.token_labels import TokenLabels
from cenote.loading.transformers_entry import is_available, supports, transformers_entry
from cenote.loading.unnamed_heads import check_cross_encoder, find_unnamed_reranker, refuse_unread_head
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.ignored_keys import without_ignored_keys
from cenote.models.refused_models import check_not_refused
from cenote.models.registry import (
    ArchitectureEntry,
    CheckpointKind,
    UnknownArchitecture,
    find_architecture,
    names_from_model_type,
)
from cenote.utils.install_commands import install_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The architecture of a model, and how the model is used."""

    layout: Layout  # without what this use does not read
    entry: ArchitectureEntry
    architecture: Architecture
    kind: Sourced[CheckpointKind]
    reranker: RerankerSettings
    num_labels: int
    labels: list[str] | None
    late_interaction: LateInteraction | None

    @property
    def head(self) -> Head | None:
        return head_of_kind(self.kind.value, self.architecture)


def resolve_family(options: EngineConfig, layout: Layout) -> Family:
    """Return the architecture that config.json names, and how options and files use it."""
    entry = _find_entry(options, layout.config)
    architecture = _build_architecture(entry, layout)
    refuse_unread_head(options, layout)
    if (unnamed := find_unnamed_reranker(layout, entry, architecture)) is not None:
        layout = replace(layout, config=layout.config.with_defaults(num_labels=1))
        entry = replace(entry, kind=unnamed.value)
    num_scores = _count_labels(layout.config, _read_labels(layout.config), "sequence", architecture.sequence_head)
    reranker = detect_reranker(options, layout, entry, architecture, has_one_label=num_scores == 1)
    refuse_unknown_reranker(options, layout, reranker)
    if reranker.labels is not None and architecture.language_model is not None:
        architecture = architecture.language_model
    kind = resolve_kind(options, layout, entry, architecture, reranker.labels, unnamed)
    check_cross_encoder(options, layout, kind.value)
    if layout.files.score_head is not None and kind.value != "sequence":  # converted by an option: not used
        layout = replace(layout, files=replace(layout.files, projector=(), score_head=None))
    late_interaction = None
    if kind.value == "reward":
        reward_head = find_reward_head(layout.checkpoint, entry, architecture)
        architecture = replace(architecture, reward_head=reward_head)
    elif kind.value == "multi_vector":
        late_interaction = resolve_late_interaction(options.plain_late_interaction, layout, architecture)
    head = head_of_kind(kind.value, architecture)
    num_labels, labels = _resolve_labels(layout.config, kind.value, head, reranker.labels)
    return Family(
        layout=layout,
        entry=entry,
        architecture=architecture,
        kind=kind,
        reranker=reranker,
        num_labels=num_labels,
        labels=labels,
        late_interaction=late_interaction,
    )


def _find_entry(options: EngineConfig, config: HFConfig) -> ArchitectureEntry:
    """Return the architecture: native if registered, else of a plugin, else of the Transformers backend."""
    names = read_architectures(config) or names_from_model_type(str(config.get("model_type", "")))
    check_not_refused(names, config)
    if options.model_impl == "transformers":
        return transformers_entry(names, config.source)
    try:
        return find_architecture(names, config.source)
    except UnknownArchitecture as error:
        if (plugin_entry := find_plugin_entry(resolve_plugin_name(options, config), names)) is not None:
            return plugin_entry
        if options.model_impl != "auto" or not names:
            raise
        if not is_available():
            raise LoadError(
                f"{error.message}. The Transformers backend may support it: {install_command('transformers')}"
            ) from None
        if not supports(names, config):
            raise
        return transformers_entry(names, config.source)


def _build_architecture(entry: ArchitectureEntry, layout: Layout) -> Architecture:
    """Return the architecture with what the files add to it."""
    architecture, files = entry.family(without_ignored_keys(layout.config)), layout.files
    if layout.projection is not None:
        architecture = replace(architecture, projection=layout.projection)
    if not files.adds_special_tokens:
        architecture = replace(architecture, adds_special_tokens=False)
    return architecture if files.score_head is None else replace(architecture, sequence_head=_make_module_head(files))


def _make_module_head(files: SentenceTransformersFiles) -> Head:
    """Return the head that the modules of a cross-encoder are: its weight table is empty, since they have their own."""
    last = files.projector[-1]
    assert isinstance(last, DenseModule), "a Dense module writes the scores"
    return Head(spec=HeadSpec(num_labels=last.out_features), weights={})


def _read_labels(config: HFConfig) -> list[str] | None:
    names = config.get("id2label")
    if names is None:
        return None
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError):
        raise LoadError(f"{config.source}: id2label is {names!r}; expected a mapping of numbers to names") from None


def _count_labels(config: HFConfig, labels: list[str] | None, kind: CheckpointKind, head: Head | None) -> int:
    """Return the number of values that the head of a kind gives."""
    if kind in ("masked", "sparse", "causal"):
        return int(config.vocab_size)
    if kind == "hybrid":
        return 1
    if head is not None and head.spec.num_labels is not None:
        return head.spec.num_labels
    count = config.get("num_labels") or (len(labels) if labels else 2)  # Transformers does not save the default of 2
    return int(count)


def _resolve_labels(
    config: HFConfig, kind: CheckpointKind, head: Head | None, from_tokens: TokenLabels | None
) -> tuple[int, list[str] | None]:
    """Return the number of values that the head gives, and their names if they have any."""
    labels = _read_labels(config) if head is not None and kind in ("sequence", "token", "reward") else None
    num_labels = _count_labels(config, labels, kind, head)
    if labels and len(labels) != num_labels:
        labels = None  # those of the base model
    if from_tokens is not None:
        return from_tokens.num_labels, labels
    if labels is None and head is not None and kind in ("sequence", "token"):
        labels = [f"LABEL_{row}" for row in range(num_labels)]  # Transformers does not save its default names
    return num_labels, labels
