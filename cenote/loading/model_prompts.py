"""Read the prompts of a model from Sentence Transformers files and config.json, and select the default prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.embedding_output import SETTINGS_FILE
from cenote.loading.family import Family

# Sentence Transformers defines these for every model, with empty text by default
BUILTIN_PROMPT_NAMES = ("query", "document")


@dataclass(frozen=True, slots=True)
class ModelPrompts:
    by_name: Mapping[str, str]
    instructions: Mapping[str, str]  # by task
    default: Sourced[str] | None  # for requests without a prompt


def read_model_prompts(options: EngineConfig, family: Family) -> ModelPrompts:
    config, files, architecture = family.layout.config, family.layout.files, family.architecture
    instructions = config.get("task_instructions") or {}
    if not isinstance(instructions, dict) or not all(isinstance(text, str) for text in instructions.values()):
        raise LoadError(
            f"{config.source}: task_instructions is {instructions!r}; expected a mapping of names to strings"
        )
    prompts = {**architecture.prompts, **files.prompts}
    return ModelPrompts(
        prompts,
        instructions,
        _resolve_default_prompt(options, {**instructions, **prompts}, family),
    )


def _resolve_default_prompt(options: EngineConfig, known: Mapping[str, str], family: Family) -> Sourced[str] | None:
    if options.default_prompt is not None:
        return Sourced(options.default_prompt, "default_prompt")
    name, source = options.default_prompt_name, "default_prompt_name"
    if name is None and family.kind.value != "multi_vector":  # whose queries and documents have their own
        name, source = family.layout.files.default_prompt_name, SETTINGS_FILE
        if name is None:
            name, source = family.architecture.default_prompt_name, "the architecture"
    if name is None:
        return None
    if name not in known and name not in BUILTIN_PROMPT_NAMES:
        raise LoadError(f"unknown default_prompt_name {name!r}; available: {', '.join(sorted(known)) or 'none'}")
    return Sourced(known.get(name, ""), source)
