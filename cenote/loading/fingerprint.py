"""Fingerprint of a model: 40 hex digits that change with everything that changes its results.

It is the same on all machines and in all versions of Cenote, and does not depend on the folder of the model. Its parts
say what has changed:

    weights     the files with weights; of files above 128 MiB only size, header and samples
    config      config.json with hf_overrides, kind of the model, maximum length, image processor, default adapter
    tokenizer   vocabulary and settings of the tokenizer
    pooling     pooling, projections, activation, sizes and formats of queries and documents
    prompts     prompts, score template and chat template
    dtype       dtype of the model, of its heads and of its matrix products, quantization

The first 16 digits are the digest of all parts, then come 4 digits of each part, so that two fingerprints tell which
parts differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.adapter_files import parse_lora_module
from cenote.loading.checkpoint import ADAPTER_CONFIG, Checkpoint, find_adapter
from cenote.loading.layouts.static_embeddings import SIZE_SOURCE
from cenote.loading.model_description import ModelDescription
from cenote.loading.model_files import iter_digests, list_tokenizer_files, list_weight_files
from cenote.loading.template_files import read_template_text

PARTS = ("weights", "config", "tokenizer", "pooling", "prompts", "dtype")
DIGEST_CHARS, PART_CHARS = 16, 4
LENGTH = DIGEST_CHARS + PART_CHARS * len(PARTS)
# keys of config.json that have no effect; `dtype` is a part of its own
IGNORED_KEYS = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", SIZE_SOURCE)
# fields that say where a setting comes from, or what is reported about it
IGNORED_FIELDS = ("source", "file", "doubts", "model", "name")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of the parts of a model, 64 hex digits each."""

    parts: Mapping[str, str]

    def __str__(self) -> str:
        digest = hashlib.sha256("\n".join(f"{name} {self.parts[name]}" for name in PARTS).encode()).hexdigest()
        return digest[:DIGEST_CHARS] + "".join(self.parts[name][:PART_CHARS] for name in PARTS)


def check_fingerprint(fingerprint: Fingerprint | None, expected: str, model: str) -> None:
    """Raise LoadError unless the fingerprint starts with `expected`, 12 hex digits or more."""
    if fingerprint is None:
        raise LoadError(f"{model} has no fingerprint: its folder has no weights; unset expect_fingerprint")
    actual, expected = str(fingerprint), expected.lower()
    if actual.startswith(expected):
        return
    differing = list_differing_parts(expected, actual)
    listed = f"; different: {', '.join(differing)}" if differing else ""
    raise LoadError(
        f"the fingerprint of {model} is {actual}, expected {expected}{listed}; load the model with the files and "
        "options that it had, or change expect_fingerprint"
    )


def list_differing_parts(first: str, second: str) -> list[str]:
    """Return the parts in which two fingerprints differ; empty if one of them is too short to tell."""
    if len(first) != LENGTH or len(second) != LENGTH:
        return []
    starts = range(DIGEST_CHARS, LENGTH, PART_CHARS)
    return [
        name
        for name, start in zip(PARTS, starts, strict=True)
        if first[start : start + PART_CHARS] != second[start : start + PART_CHARS]
    ]


def compute_fingerprint(description: ModelDescription, options: EngineConfig) -> Fingerprint | None:
    """Return the fingerprint of a model; None if its weights are missing, as after `cenote inspect` of a hub name."""
    weights = _collect_weights(description.checkpoint)
    if not weights:
        return None
    values = {
        "weights": [*weights, *_collect_default_adapter(options)],
        "config": _collect_config(description, options),
        "tokenizer": _collect_tokenizer(description, options),
        "pooling": _collect_pooling(description),
        "prompts": _collect_prompts(description, options),
        "dtype": [
            f"torch.{description.dtype.value}",  # as it was named in the first fingerprints
            f"torch.{description.head_dtype.value}",
            description.quantization.value,
            # listed only where it differs: fingerprints of other machines stay as they are
            *(
                [f"torch.{matmul_dtype}"]
                if (matmul_dtype := description.matmul_dtype.value) != description.dtype.value
                else []
            ),
        ],
    }
    encoded = {name: json.dumps(to_plain(value), sort_keys=True) for name, value in values.items()}
    return Fingerprint({name: hashlib.sha256(text.encode()).hexdigest() for name, text in encoded.items()})


def _collect_weights(checkpoint: Checkpoint | None) -> list[tuple[str, str]]:
    files: list[tuple[str, str]] = []
    while checkpoint is not None:  # an adapter, then its base model
        found = list(iter_digests(checkpoint, list_weight_files(checkpoint)))
        if not found:
            return []
        files += found
        checkpoint = checkpoint.base
    return files


def _collect_default_adapter(options: EngineConfig) -> list[tuple[str, str]]:
    """Return the files of the adapter of requests without one, unless it is in the checkpoint."""
    paths = [path for name, path in map(parse_lora_module, options.lora_modules) if name == options.default_adapter]
    if not paths:
        return []
    checkpoint = find_adapter(paths[0], hub=options.hub)
    settings = json.dumps(checkpoint.read_json(ADAPTER_CONFIG), sort_keys=True)
    return [*iter_digests(checkpoint, list_weight_files(checkpoint)), (ADAPTER_CONFIG, settings)]


def _collect_config(description: ModelDescription, options: EngineConfig) -> dict[str, Any]:
    checkpoint, vision = description.checkpoint, description.architecture.vision
    processors = ("processor_config.json", "preprocessor_config.json") if vision is not None else ()
    return {
        "config": description.config.values,
        "architecture": description.entry.name,
        "kind": description.kind.value,
        "labels": description.token_labels,
        "max_length": description.max_length.value,
        "route": checkpoint.route,
        "default_adapter": options.default_adapter,
        "adapter_config": checkpoint.read_json(ADAPTER_CONFIG),
        "processors": [checkpoint.read_json(file) for file in processors],
        "mm_processor_kwargs": options.mm_processor_kwargs,
    }


def _collect_tokenizer(description: ModelDescription, options: EngineConfig) -> list[tuple[str, str]]:
    if not description.architecture.reads_texts or description.kind.value == "tensors":
        return []
    checkpoint = description.find_tokenizer()
    digests = iter_digests(checkpoint, list_tokenizer_files(checkpoint))
    return [(path.rpartition("/")[2], digest) for path, digest in digests]


def _collect_pooling(description: ModelDescription) -> dict[str, Any]:
    files = replace(description.sentence_transformers, prompts={}, default_prompt_name=None, max_length=None)
    late, projection = description.late_interaction, description.architecture.projection
    return {
        "plan": description.plan,
        "sentence_transformers": files,
        "late_interaction": None if late is None else late.settings,
        # of a model that is known by its name; other projections follow from the architecture
        **({"pooler": projection} if projection is not None and projection.is_pooler else {}),
    }


def _collect_prompts(description: ModelDescription, options: EngineConfig) -> dict[str, Any]:
    return {
        "prompts": description.prompts,
        "score_template": description.score_template,
        "chat_template": read_template_text(options.chat_template, "chat_template"),
        "chat_template_kwargs": options.default_chat_template_kwargs,
    }


def to_plain(value: Any) -> Any:
    """Return a value as JSON types; unset fields are left out, so that a new field changes no fingerprint."""
    if isinstance(value, Sourced):
        return to_plain(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        items = {item.name: getattr(value, item.name) for item in fields(value) if item.name not in IGNORED_FIELDS}
        return to_plain({name: item for name, item in items.items() if not _is_unset(item)})
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items() if key not in IGNORED_KEYS}
    if isinstance(value, list | tuple | set | frozenset):
        plain = [to_plain(item) for item in value]
        return sorted(plain, key=json.dumps) if isinstance(value, set | frozenset) else plain
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _is_unset(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | tuple | Mapping) and not value)
