"""Find the LoRA adapters of a model: those of its checkpoint, and those of the options."""

from __future__ import annotations

import json
import logging

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.checkpoint import ADAPTER_CONFIG, Checkpoint
from cenote.models.architecture import Architecture

logger = logging.getLogger("cenote")


def parse_lora_module(module: str) -> tuple[str, str]:
    """Parse name=path, or a JSON object with name and path."""
    if module.lstrip().startswith("{"):
        try:
            entry = json.loads(module)
            return str(entry["name"]), str(entry["path"])
        except (ValueError, KeyError):
            raise LoadError(f"invalid --lora-modules {module!r}; expected JSON with name and path") from None
    name, equals, path = module.partition("=")
    if not (name and equals and path):
        raise LoadError(f"invalid --lora-modules {module!r}; expected name=path")
    return name, path


def find_bundled(checkpoint: Checkpoint) -> dict[str, Checkpoint]:
    """Return the adapters in the `adapters` folder of a checkpoint, by name; other folders are training artefacts."""
    files = sorted(checkpoint.folder.glob(f"adapters/*/{ADAPTER_CONFIG}"))
    return {file.parent.name: Checkpoint(str(file.parent), file.parent) for file in files}


def may_have_adapters(options: EngineConfig, checkpoint: Checkpoint, architecture: Architecture) -> bool:
    """Return whether requests may name an adapter."""
    is_asked_for = options.enable_lora or bool(options.lora_modules)
    return is_asked_for or architecture.adapters is not None or bool(find_bundled(checkpoint))


def check_without_adapters(options: EngineConfig, checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Raise LoadError if options name an adapter of a model that has none, and warn if it was trained with some."""
    if options.default_adapter is not None and architecture.task_adapters is None:
        raise LoadError(f"default_adapter {options.default_adapter!r}: {checkpoint.folder} has no adapters")
    if architecture.default_adapters:
        logger.warning("%s does not contain the adapters it was trained with", checkpoint.folder)
