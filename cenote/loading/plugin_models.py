"""Find the plugin that implements a model with tensor inputs, before its weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.registry import ArchitectureEntry
from cenote.plugins.discovery import (
    find_plugins_for_architecture,
    list_installed_plugins,
    list_plugin_models,
    resolve_plugin_class,
)

# a tensor input counts as one token in the scheduler
SINGLE_TOKEN_LENGTH = Sourced(1, "tensor inputs, one token each")


def resolve_plugin_name(options: EngineConfig, config: HFConfig) -> str | None:
    """Return the plugin name of the option, else of config.json, else None."""
    name = options.io_processor_plugin or config.get("io_processor_plugin")
    return name if isinstance(name, str) else None


def find_plugin_entry(plugin: str | None, names: Sequence[str]) -> ArchitectureEntry | None:
    """Return the entry of an architecture of the selected plugin; packages of other plugins are not imported."""
    offered = {} if plugin is None else list_plugin_models(plugin)
    if plugin is not None and plugin not in list_installed_plugins():
        resolve_plugin_class(plugin)  # raises an error that lists installed plugins
    for name in names:
        if name in offered:
            return ArchitectureEntry(name, _placeholder_architecture, "tensors")
        if plugins := find_plugins_for_architecture(name):
            reason = "no plugin is selected" if plugin is None else f"{plugin!r} belongs to another package"
            raise LoadError(
                f"{name} needs an IO processor plugin, but {reason}; "
                f"set io_processor_plugin to one of: {', '.join(plugins)}"
            )
    return None


def _placeholder_architecture(config: HFConfig) -> Architecture:
    """Return a minimal description; the backbone is the plugin's module."""
    spec = BackboneSpec(vocab_size=2, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1)
    return Architecture(backbone=spec, weights={})
