"""Finds an installed plugin by its name; of those that nobody selected, nothing is imported."""

from __future__ import annotations

import inspect
import logging
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cenote.errors import LoadError
from cenote.plugins.io_processor import DEPRECATED_METHODS, has_override

logger = logging.getLogger("cenote")

# ours, and the one that plugins written for the reference name; where both have a name, ours holds
ENTRY_POINT_GROUPS = ("cenote.io_processor_plugins", "vllm.io_processor_plugins")

# name: an architecture; value: a function that makes the model of what config.json says
TENSOR_MODELS_GROUP = "cenote.tensor_models"


def load_plugin(name: str, config: Any, renderer: Any) -> Any:
    """The plugin of that name, ready to be asked."""
    kind = resolve_plugin_class(name)
    try:
        plugin = kind(config, renderer) if _accepts_renderer(kind) else kind(config)
    except Exception as error:  # whatever somebody else's constructor raises
        raise LoadError(f"the IO processor plugin {name!r} failed to start: {_format_reason(error)}") from error
    _check_methods(name, plugin)
    return plugin


def resolve_plugin_class(name: str) -> type:
    """The class that the entry point of that name tells."""
    entries = list_installed_plugins()
    told, trouble = None, ""
    if name in entries:
        entry = _check_unique(name, entries[name])
        try:
            told = entry.load()()
        except Exception as error:  # whatever somebody else's module raises
            logger.warning("Failed to load plugin %s.", name, exc_info=True)
            trouble = f" ({name!r} is there, but failed to load: {_format_reason(error)})"
    if told is not None:
        return _import_class(name, told)
    others = sorted(entries.keys() - {name})
    if not others:
        raise LoadError(f"No IOProcessor plugins installed but one is required ({name}).{trouble}")
    raise LoadError(
        f"The model requires the {name!r} IO Processor plugin but it is not installed. Available plugins: {others}"
        + trouble
    )


def list_installed_plugins() -> dict[str, list[EntryPoint]]:
    """What packages offer, by name, as they wrote it down: nothing of theirs runs for this."""
    found: dict[str, list[EntryPoint]] = {}
    for group in ENTRY_POINT_GROUPS:
        of_group: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=group):
            of_group.setdefault(entry.name, []).append(entry)
        found = of_group | found
    return found


def list_plugin_models(plugin: str) -> dict[str, EntryPoint]:
    """The models that the package of a plugin brings, by their architecture's name in config.json."""
    packages = {_get_package_name(entry) for entry in list_installed_plugins().get(plugin, ())}
    return {
        entry.name: entry for entry in entry_points(group=TENSOR_MODELS_GROUP) if _get_package_name(entry) in packages
    }


def find_plugins_for_architecture(architecture: str) -> list[str]:
    """The plugins whose packages bring a model of that name."""
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
        raise LoadError(f"{packages} both bring an IO processor plugin {name!r}; uninstall one of them")
    return entries[0]


def _import_class(name: str, path: object) -> type:
    if not isinstance(path, str) or "." not in path:
        raise LoadError(
            f"the IO processor plugin {name!r} names its class as {path!r}; it must be like 'package.module.Class'"
        )
    module, _, attribute = path.rpartition(".")
    try:
        kind = getattr(import_module(module), attribute)
    except Exception as error:
        raise LoadError(
            f"{path} of the IO processor plugin {name!r} cannot be imported: {_format_reason(error)}"
        ) from error
    if not isinstance(kind, type):
        raise LoadError(f"{path} of the IO processor plugin {name!r} is no class")
    return kind


def _format_reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _accepts_renderer(plugin_type: type) -> bool:
    """Older plugins take the config alone."""
    try:
        inspect.signature(plugin_type).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _check_methods(name: str, plugin: object) -> None:
    parses = has_override(plugin, "parse_data") or callable(getattr(plugin, "parse_request", None))
    missing = [] if parses else ["parse_data"]
    missing += [needed for needed in ("pre_process", "post_process") if not has_override(plugin, needed)]
    if missing:
        raise LoadError(
            f"{type(plugin).__name__} of the IO processor plugin {name!r} has no {' and no '.join(missing)}"
        )
    for older, today in DEPRECATED_METHODS.items():
        if callable(getattr(plugin, older, None)):
            logger.info("the IO processor plugin %s uses %s; its name today is %s", name, older, today)
