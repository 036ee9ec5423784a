"""Decide how a model is used: embedder, classifier, reranker, ..."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from cenote.config.engine import Convert, EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.bge_m3_files import find_head_files
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.layouts.layout import Layout
from cenote.loading.merged_weights import open_model_weights
from cenote.loading.token_labels import TokenLabels
from cenote.models.architecture import Architecture, Head
from cenote.models.registry import ArchitectureEntry, CheckpointKind

# names of the tensors in which reward models store a value per token
REWARD_HEAD_PREFIXES = (
    *("score.", "classifier.", "v_head.", "value_head."),
    *("reward_head.", "rm_head.", "regression_layer."),
)


def resolve_kind(
    options: EngineConfig,
    layout: Layout,
    entry: ArchitectureEntry,
    architecture: Architecture,
    from_tokens: TokenLabels | None,
    from_weights: Sourced[CheckpointKind] | None,
) -> Sourced[CheckpointKind]:
    """Return how the model is used: by option, else by its files, else by its architecture name."""
    from_files = from_weights or _detect_kind(layout, entry)
    if options.runner == "generate":
        raise LoadError("runner='generate' is not supported: Cenote runs pooling models; expected 'pooling' or 'auto'")
    if entry.kind == "tensors":
        return Sourced(entry.kind, f"architecture {entry.name} of the plugin")
    # a classifier is a reward model as it is
    has_classifier = entry.kind == "sequence" or from_tokens is not None
    reward_kind: CheckpointKind = "sequence" if has_classifier else "token" if entry.kind == "token" else "reward"
    by_flag: dict[Convert, CheckpointKind] = {"embed": "embed", "classify": "sequence", "reward": reward_kind}
    if entry.kind == "causal" and options.convert in ("auto", "reward") and options.pooler_config.returned_token_ids:
        kind: Sourced[CheckpointKind] = Sourced("causal", "pooler config returned_token_ids")
    elif options.convert in by_flag:
        kind = Sourced(by_flag[options.convert], f"convert {options.convert}")
    elif from_tokens is not None:
        kind = Sourced("sequence", from_tokens.source)
    elif from_files is not None:
        kind = from_files
    elif entry.kind == "causal":
        if options.convert == "none":
            raise LoadError(
                "This model does not support `--runner pooling`. "
                "You can pass `--convert <embed|classify> to adapt it into a pooling model."
            )
        kind = Sourced("embed", f"architecture {entry.name}, converted")
    else:
        kind = Sourced(entry.kind, f"architecture {entry.name}")
    if kind.value == "causal" and architecture.language_model is not None:
        raise LoadError(
            f"returned_token_ids: the encoder of {entry.name} has no logits of tokens; its decoder scores pairs with "
            'hf_overrides={"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}'
        )
    if kind.value == "masked" and architecture.masked_head is None:
        kind = Sourced("embed", f"architecture {entry.name}")
    if kind.value == "sparse":
        _check_sparse(options, entry, architecture, kind.source)
    if entry.uses_transformers and (from_tokens is not None or kind.value not in (entry.kind, "embed", "reward")):
        raise LoadError(f"{entry.name} runs on the Transformers backend, which cannot convert it to a classifier")
    if kind.value == "sequence" and architecture.sequence_head is None:
        raise LoadError(f"{entry.name} has no sequence classification head; use convert='embed'")
    return kind


def _detect_kind(layout: Layout, entry: ArchitectureEntry) -> Sourced[CheckpointKind] | None:
    """Return the kind declared by the files; None if the architecture name determines it."""
    files = layout.files
    if files.score_head is not None:
        return Sourced("sequence", f"{files.score_head}/config.json module_output_name")
    if files.splade is not None and entry.kind in ("masked", "embed", "causal"):
        return Sourced("sparse", files.splade.source)
    if files.multi_vector is not None and entry.kind in ("embed", "masked", "causal"):
        return Sourced("multi_vector", files.multi_vector.source)
    if entry.kind == "embed" and (heads := find_head_files(layout.checkpoint)) is not None:
        return Sourced("hybrid", " and ".join(path.name for path in heads))
    if entry.kind == "masked" and files.pooling is not None:
        return Sourced("embed", files.pooling.source)  # a masked language model fine-tuned for embeddings
    return None


def find_reward_head(checkpoint: Checkpoint, entry: ArchitectureEntry, architecture: Architecture) -> Head | None:
    """Return the head of a reward model: the architecture's, else its classifier if the checkpoint has the weights.

    None: the model returns the hidden states of all tokens. Raise LoadError for a head that is unknown.
    """
    if architecture.reward_head is not None:
        return architecture.reward_head
    stored = open_model_weights(checkpoint).names()
    bare = {name.removeprefix(next(filter(name.startswith, architecture.prefixes), "")) for name in stored}
    names = sorted(name for name in bare if name.startswith(REWARD_HEAD_PREFIXES))
    if not names:
        return None
    head = architecture.sequence_head
    # one linear layer gives a value per token as it gives one per sequence
    if (
        not entry.uses_transformers
        and head is not None
        and {name.rpartition(".")[0] for name in names} == {*head.weights.values()}
    ):
        return replace(head, applies_activation=False)
    is_ignored = all(any(fnmatchcase(name, pattern) for pattern in architecture.unused_weights) for name in names)
    advice = "; use convert='embed' for embeddings, which ignore it" if is_ignored else ""
    raise LoadError(
        f"{checkpoint.folder}: {entry.name} has a reward head that is not supported ({', '.join(names[:4])}){advice}"
    )


def _check_sparse(options: EngineConfig, entry: ArchitectureEntry, architecture: Architecture, source: str) -> None:
    # the vocabulary head of a decoder (splade-code) is its LM head
    if architecture.masked_head is None and not architecture.is_static and entry.kind != "causal":
        raise LoadError(
            f"{source}: {entry.name} has no masked-language-model head here, which SPLADE needs; use a SPLADE model of "
            "texts such as naver/splade-v3, or convert='embed' to embed with its backbone"
        )
    if options.pooler_config.enable_chunked_processing:
        raise LoadError(
            "enable_chunked_processing is not supported for SPLADE models: it averages the embeddings of chunks, "
            "and sparse weights cannot be averaged"
        )


def head_of_kind(kind: CheckpointKind, architecture: Architecture) -> Head | None:
    """Return the head of an architecture for a kind; None if the kind has none."""
    heads: dict[CheckpointKind, Head | None] = {
        "sequence": architecture.sequence_head,
        "token": architecture.token_head,
        "reward": architecture.reward_head,
        "masked": architecture.masked_head,
        "sparse": architecture.masked_head,
    }
    return heads.get(kind)
