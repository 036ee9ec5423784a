"""ModelTable: the models of a server, their names, engine options, and when they are loaded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cenote.config.engine import EngineConfig
from cenote.config.options import DEFAULT_MODEL, check_known_names
from cenote.errors import BadRequest
from cenote.protocol.names import check_new_name, find_local_folder, get_public_name

LoadTime = Literal["start", "demand"]
LOAD_TIMES: tuple[LoadTime, ...] = ("start", "demand")
ENTRY_KEYS = (
    "name",
    "source",
    "aliases",
    "options",
    "replicas",
    "devices",
    "pinned",
    "keep_alive_s",
    "load",
)
DEFAULT_NAME = Path(DEFAULT_MODEL).name
MAX_PATH_PARTS = 8  # in the name of a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model as requests see it; entries with the same source and options share their engine processes."""

    name: str  # in responses and metrics
    config: EngineConfig
    aliases: tuple[str, ...] = ()
    accepts_source_names: bool = True  # also the hub name, its last part, and the folder
    pinned: bool = False  # never unloaded to make room for others
    keep_alive_s: float | None = None  # seconds without requests after which it is unloaded
    load: LoadTime = "start"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are listed."""
        return (self.name, *self.aliases)

    @property
    def source(self) -> str:
        return self.config.model or DEFAULT_MODEL

    def shares_engines(self, other: ModelEntry) -> bool:
        """Whether one set of engine processes can serve both."""
        return self._engine_key() == other._engine_key()

    @property
    def replicas(self) -> int:
        return self.config.num_replicas

    def _engine_key(self) -> EngineConfig:
        return replace(self.config, model=resolve_source(self.source), served_model_name=None)


@dataclass(frozen=True, slots=True)
class ModelTable:
    entries: tuple[ModelEntry, ...]  # the first is used by requests without a model
    options: Mapping[str, Any] = field(default_factory=dict)  # engine options of models that are added later

    def __post_init__(self) -> None:
        if not self.entries:
            raise BadRequest("no model is given; expected at least one")
        check_unique_names(self.entries)

    @classmethod
    def of(
        cls, config: EngineConfig, names: Sequence[str] = (), options: Mapping[str, Any] | None = None
    ) -> ModelTable:
        """Return the table of a server with one model; `names` replace those of its source."""
        name, *aliases = names or (get_public_name(config.model or DEFAULT_NAME),)
        entry = ModelEntry(name=name, config=config, aliases=tuple(aliases), accepts_source_names=not names)
        return cls((entry,), options or {})

    @classmethod
    def from_sources(cls, sources: Sequence[str], options: Mapping[str, Any]) -> ModelTable:
        """Return the table of several models with the same engine options."""
        return cls(tell_apart([parse_entry({"source": source}, options) for source in dict.fromkeys(sources)]), options)

    @classmethod
    def from_file(cls, path: str, options: Mapping[str, Any]) -> ModelTable:
        """Read a YAML file with a list of entries; `options` are the engine options of entries without their own."""
        entries = [read_entry(item, options, f"{path}, model {number}") for number, item in read_list(path)]
        return cls(tell_apart(entries), options)


def read_list(path: str) -> Iterable[tuple[int, Any]]:
    import yaml  # only for servers with such a file

    try:
        content = yaml.safe_load(Path(path).expanduser().read_text())
    except OSError as error:
        raise BadRequest(f"models file {path} cannot be read: {error.strerror}", param="models") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadRequest(f"models file {path} is not valid YAML: {error}", param="models") from None
    if isinstance(content, dict) and list(content) == ["models"]:
        content = content["models"]
    if not isinstance(content, list) or not content:
        raise BadRequest(f"models file {path}: expected a list of models, each with source or name", param="models")
    return enumerate(content, 1)


def read_entry(item: Any, options: Mapping[str, Any], place: str) -> ModelEntry:
    if isinstance(item, str):
        item = {"source": item}
    try:
        if not isinstance(item, dict):
            raise BadRequest(f"expected a mapping with {', '.join(ENTRY_KEYS)}, got {item!r}")
        return parse_entry(item, options)
    except BadRequest as error:
        raise BadRequest(f"{place}: {error.message}", param="models") from None


def parse_entry(values: Mapping[str, Any], options: Mapping[str, Any]) -> ModelEntry:
    """Return the entry that a mapping describes; raise for unknown keys, invalid values and invalid options."""
    unknown = [str(key) for key in values if key not in ENTRY_KEYS]
    if unknown:
        raise BadRequest(f"unknown keys: {', '.join(unknown)}; expected some of: {', '.join(ENTRY_KEYS)}")
    name, source = _get_text(values, "name"), _get_text(values, "source")
    if source is None and name is None:
        raise BadRequest("source is missing; expected a hub name or a folder")
    aliases = _get_texts(values, "aliases")
    for given, key in ((name, "name"), *((alias, "aliases") for alias in aliases)):
        check_new_name(given or "", key)
    check_source(source or name or "")
    own_options = values.get("options") or {}
    if not isinstance(own_options, dict):
        raise BadRequest(f"options must be a mapping of engine options, got {own_options!r}")
    check_known_names(own_options, set(EngineConfig.__dataclass_fields__) - {"model", "served_model_name"}, "option")
    own_options = {**own_options, **_get_replicas(values)}
    is_named = source not in (None, name)
    config = EngineConfig.from_kwargs(
        **{**options, **own_options, "model": source or name, "served_model_name": name if is_named else None}
    )
    return ModelEntry(
        name=name if name and is_named else get_public_name(name or source or ""),
        config=config,
        aliases=aliases,
        pinned=_get_flag(values, "pinned"),
        keep_alive_s=_get_seconds(values, "keep_alive_s"),
        load=_get_load_time(values),
    )


def change_entry(entry: ModelEntry, changes: Mapping[str, Any], options: Mapping[str, Any]) -> ModelEntry:
    """Return the entry with another source or other options; what is not changed stays."""
    if not changes:
        return entry
    changed = parse_entry({"source": entry.source, **changes, "name": entry.name}, options)
    if changes.get("options") is None:
        return replace(entry, config=replace(entry.config, model=changed.config.model))
    return replace(entry, config=replace(changed.config, served_model_name=entry.config.served_model_name))


def check_same(entry: ModelEntry, changes: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise if a definition differs from the entry of the same name."""
    other = parse_entry({"source": entry.source, **changes, "name": entry.name}, options)
    if not other.shares_engines(entry) or (changes.get("aliases") and other.names != entry.names):
        raise BadRequest(
            f"the model {entry.name} exists with another source, other options or aliases; change it with "
            "POST /admin/models/reload, or choose another name",
            param="name",
        )


def tell_apart(entries: Sequence[ModelEntry]) -> tuple[ModelEntry, ...]:
    """Return the entries; folders of one name are named by as many parts of their paths as tell them apart."""
    for num_parts in range(2, MAX_PATH_PARTS):
        counts = Counter(name for entry in entries for name in entry.names)
        entries = [
            replace(entry, name=get_public_name(entry.source, num_parts))
            if counts[entry.name] > 1 and entry.config.served_model_name is None
            else entry
            for entry in entries
        ]
    return tuple(entries)


def check_unique_names(entries: Iterable[ModelEntry]) -> None:
    owners: dict[str, ModelEntry] = {}
    for entry in entries:
        for name in entry.names:
            if (owner := owners.get(name)) is not None:
                places = f"{owner.source} and {entry.source}" if owner is not entry else f"{entry.source}, twice"
                raise BadRequest(f"the name {name!r} is given to {places}; names and aliases must be unique")
            owners[name] = entry


def resolve_source(source: str) -> str:
    """Return the same text for all spellings of one source."""
    if source == DEFAULT_NAME:
        return DEFAULT_MODEL
    folder = find_local_folder(source)
    return source if folder is None else os.path.realpath(folder)


def check_source(source: str) -> None:
    """Raise for a path that this process cannot even look up, before anything refers to it."""
    try:
        Path(source).expanduser().is_dir()
    except (OSError, RuntimeError) as error:  # a path that is too long or may not be searched; a home of nobody
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadRequest(
            f"source {source!r} cannot be resolved: {reason}; expected a hub name, a folder that the server may read, "
            "or s3://bucket/path",
            param="source",
        ) from None


def _get_text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise BadRequest(f"{key} must be a text that is not empty, got {value!r}")
    return value


def _get_texts(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key)
    items = [value] if isinstance(value, str) else value or []
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item for item in items):
        raise BadRequest(f"{key} must be a list of texts, got {value!r}")
    return tuple(items)


def _get_count(values: Mapping[str, Any], key: str, default: int) -> int:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{key} must be a number of 1 or more, got {value!r}")
    return value


def _get_replicas(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine options that stand beside the others in an entry."""
    options: dict[str, Any] = {}
    if "replicas" in values:
        options["data_parallel_size"] = _get_count(values, "replicas", 1)
    if "devices" in values:
        options["devices"] = _get_texts(values, "devices")
    return options


def _get_flag(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{key} must be true or false, got {value!r}")
    return value


def _get_seconds(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        raise BadRequest(f"{key} must be a number of seconds above 0, got {value!r}")
    return value


def _get_load_time(values: Mapping[str, Any]) -> LoadTime:
    for time in LOAD_TIMES:
        if values.get("load", "start") == time:
            return time
    raise BadRequest(f"load must be one of {', '.join(LOAD_TIMES)}, got {values['load']!r}")
