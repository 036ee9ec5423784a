"""Find installed plugins by their entry points; only the selected plugin is imported."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cenote.errors import LoadError
from cenote.plugins.io_processor import DEPRECATED_METHODS, has_override

logger = logging.getLogger("cenote")

# the entry-point groups of Cenote and of plugins written for vLLM; the first takes precedence
ENTRY_POINT_GROUPS = ("cenote.io_processor_plugins", "vllm.io_processor_plugins")

# entry points named after an architecture, for functions that build the model from config.json
TENSOR_MODELS_GROUP = "cenote.tensor_models"


def load_plugin(name: str, config: Any, renderer: Any) -> Any:
    """Return an instance of the plugin."""
    plugin_type = resolve_plugin_class(name)
    try:
        plugin = plugin_type(config, renderer) if _accepts_renderer(plugin_type) else plugin_type(config)
    except Exception as error:  # third-party code
        raise LoadError(f"the IO processor plugin {name!r} failed to start: {_format_reason(error)}") from error
    _check_methods(name, plugin)
    return plugin


def resolve_plugin_class(name: str) -> type:
    """Return the class that the plugin's entry point names."""
    entries = list_installed_plugins()
    class_path, problem = None, ""
    if name in entries:
        entry = _check_unique(name, entries[name])
        try:
            class_path = entry.load()()
        except Exception as error:  # third-party code
            logger.warning("Failed to load plugin %s.", name, exc_info=True)
            problem = f" ({name!r} is installed but failed to load: {_format_reason(error)})"
    if class_path is not None:
        return _import_class(name, class_path)
    others = sorted(entries.keys() - {name})
    if not others:
        raise LoadError(f"No IOProcessor plugins installed but one is required ({name}).{problem}")
    raise LoadError(
        f"The model requires the {name!r} IO Processor plugin but it is not installed. Available plugins: {others}"
        + problem
    )


def list_installed_plugins() -> dict[str, list[EntryPoint]]:
    """Return the entry points of installed plugins by name, without importing the plugins."""
    plugins: dict[str, list[EntryPoint]] = {}
    for group in ENTRY_POINT_GROUPS:
        group_plugins: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=group):
            group_plugins.setdefault(entry.name, []).append(entry)
        plugins = group_plugins | plugins
    return plugins


def list_plugin_models(plugin: str) -> dict[str, EntryPoint]:
    """Return the models in the package of a plugin, by architecture name."""
    packages = {_get_package_name(entry) for entry in list_installed_plugins().get(plugin, ())}
    return {
        entry.name: entry for entry in entry_points(group=TENSOR_MODELS_GROUP) if _get_package_name(entry) in packages
    }


def find_plugins_for_architecture(architecture: str) -> list[str]:
    """Return the plugins whose packages contain a model of this architecture."""
    packages = {
        _get_package_name(entry) for entry in entry_points(group=TENSOR_MODELS_GROUP) if entry.name == architecture
    }
    return sorted(
        name
        for name, entries in list_installed_plugins().items()
        if any(_get_package_name(entry) in packages for entry in entries)
    )


def _get_package_name(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.module


def _check_unique(name: str, entries: list[EntryPoint]) -> EntryPoint:
    if len({entry.value for entry in entries}) > 1:
        packages = " and ".join(sorted(entry.dist.name if entry.dist else entry.value for entry in entries))
        raise LoadError(f"{packages} both provide an IO processor plugin {name!r}; uninstall one of them")
    return entries[0]


def _import_class(name: str, path: object) -> type:
    if not isinstance(path, str) or "." not in path:
        raise LoadError(
            f"the IO processor plugin {name!r} returned the invalid class path {path!r}; expected "
            "'package.module.Class'"
        )
    module, _, attribute = path.rpartition(".")
    try:
        plugin_type = getattr(import_module(module), attribute)
    except Exception as error:
        raise LoadError(
            f"{path} of the IO processor plugin {name!r} cannot be imported: {_format_reason(error)}"
        ) from error
    if not isinstance(plugin_type, type):
        raise LoadError(f"{path} of the IO processor plugin {name!r} is not a class")
    return plugin_type


def _format_reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _accepts_renderer(plugin_type: type) -> bool:
    """Return whether the constructor takes a renderer; that of older plugins takes the config alone."""
    try:
        inspect.signature(plugin_type).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _check_methods(name: str, plugin: object) -> None:
    can_parse = has_override(plugin, "parse_data") or callable(getattr(plugin, "parse_request", None))
    missing = [] if can_parse else ["parse_data"]
    missing += [method for method in ("pre_process", "post_process") if not has_override(plugin, method)]
    if missing:
        raise LoadError(
            f"{type(plugin).__name__} of the IO processor plugin {name!r} does not implement {', '.join(missing)}"
        )
    for deprecated, current in DEPRECATED_METHODS.items():
        if callable(getattr(plugin, deprecated, None)):
            logger.info("the IO processor plugin %s uses the deprecated method %s; use %s", name, deprecated, current)
