"""Adapters from their files: PEFT's folders, and where each of their changes belongs in our modules."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.layers.lora import Adapter, Adapters, LowRank
from cenote.loading.checkpoint import Checkpoint, find_adapter
from cenote.loading.weights import Filler, Weights, open_file
from cenote.models.architecture import Architecture, StoredAdapters

logger = logging.getLogger("cenote")

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
VISION = "vision."  # before the paths of all that a tower has
PEFT_PREFIX = "base_model.model."
TABLES = ("embed.tokens", "embed.positions", "embed.token_types")
NAME = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])(?:\.weight|\.default\.weight|)$")


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """Reads adapters for one loaded model."""

    filler: Filler
    prefixes: tuple[str, ...]  # what may stand before the backbone's names
    dtype: torch.dtype
    device: torch.device

    def read(self, checkpoint: Checkpoint) -> Adapter:
        """The changes of a PEFT folder, by the paths of our modules."""
        config = checkpoint.json_object(CONFIG)
        if not config:
            raise LoadError(f"{checkpoint.folder} is no adapter: looked for {CONFIG}; give a folder that PEFT saved")
        _refuse_other_kinds(config, f"{checkpoint.folder / CONFIG}")
        halves = _halves(_open(checkpoint))
        changes = {module: (down, up * _scale(config, module, down.shape[0])) for module, (down, up) in halves.items()}
        return self.placed(changes, str(checkpoint.folder))

    def placed(self, changes: Mapping[str, tuple[Tensor, Tensor]], source: str) -> Adapter:
        """Changes by the checkpoint's names of the modules, moved to the modules of ours that hold their weights."""
        adapter: dict[str, list[LowRank]] = {}
        for module, (down, up) in changes.items():
            places = self.filler.places(self._bare(module))
            if not places:
                raise LoadError(
                    f"{source}: no layer of the model that takes adapters is called {module}; "
                    "was it made for another model?"
                )
            if any(path.startswith(VISION) for path, *_ in places):
                raise LoadError(
                    f"{source}: {module} is a layer that reads images, which adapters cannot change here; "
                    "merge the adapter into the model"
                )
            for path, start, rows, inputs in places:  # several, where layers share their weights
                # a table's change is written for its transpose, as PEFT does for embeddings
                expected = (inputs, rows) if path in TABLES else (rows, inputs)
                if (found := (up.shape[0], down.shape[1])) != expected:
                    raise LoadError(f"{source}: {module} changes a layer of {found}, the model's has {expected}")
                adapter.setdefault(path, []).append(self._change(down, up, start))
        return adapter

    def _bare(self, module: str) -> str:
        for prefix in sorted(self.prefixes, key=len, reverse=True):
            if prefix and module.startswith(prefix) and self.filler.places(module.removeprefix(prefix)):
                return module.removeprefix(prefix)
        return module

    def stored(self, described: StoredAdapters, num_layers: int) -> dict[str, Adapter]:
        """The adapters that lie among the weights of the model itself, by name."""
        adapters: dict[str, dict[str, list[LowRank]]] = {name: {} for name in described.tasks}
        for ours, (down_name, up_name) in described.matrices.items():
            for layer in range(num_layers) if "*" in ours else (0,):
                path = ours.replace("*", str(layer)).removesuffix(".weight")
                downs, ups = (self.filler.read(name.replace("*", str(layer))) for name in (down_name, up_name))
                for name, down, up in zip(described.tasks, downs, ups * described.scaling, strict=True):
                    # a table is looked up by row: its change is written for the transpose
                    down, up = (up.T, down.T) if path in TABLES else (down, up)
                    adapters[name][path] = [self._change(down, up)]
        return dict(adapters)

    def _change(self, down: Tensor, up: Tensor, start: int = 0) -> LowRank:
        return LowRank(down.to(self.device, self.dtype), up.to(self.device, self.dtype), start)


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The adapters of a model, and how to add more of them."""

    adapters: Adapters
    reader: AdapterReader
    default: str | None  # for requests that name none
    token: str | None  # for the hub
    own: tuple[str, ...]  # those that are part of the model
    added: dict[str, str] = field(default_factory=dict)  # the others, and where they lie

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.own, *self.added)

    def add(self, name: str, place: str) -> None:
        """Read one more from a folder or the hub, or the one of that name anew."""
        if name in self.own:
            raise LoadError(f"{name!r} is an adapter of the model itself; give the one at {place} another name")
        self.read(name, find_adapter(place, token=self.token))

    def read(self, name: str, checkpoint: Checkpoint) -> None:
        self.adapters.by_name[name] = self.reader.read(checkpoint)
        self.added[name] = checkpoint.name

    def forget(self, name: str) -> None:
        """Free its memory, unless one of that name has come since."""
        if name not in self.added:
            self.adapters.by_name.pop(name, None)


def load_adapters(
    reader: AdapterReader, checkpoint: Checkpoint, architecture: Architecture, options: EngineConfig
) -> LoadedAdapters | None:
    """Those among the weights, those in folders beside them and those that the options name; None: none may come."""
    described, folders = architecture.adapters, bundled(checkpoint)
    if not (described or folders or options.lora_modules or options.enable_lora):
        if options.default_adapter is not None:
            raise LoadError(f"default_adapter {options.default_adapter!r}: {checkpoint.folder} has no adapters")
        if architecture.default_adapters:
            logger.warning("%s comes without the adapters that it was trained with", checkpoint.folder)
        return None
    adapters = Adapters()
    if described is not None:
        adapters.by_name |= reader.stored(described, architecture.backbone.num_layers)
    for name, folder in folders.items():
        adapters.by_name[name] = reader.read(folder)
    loaded = LoadedAdapters(adapters, reader, None, options.hf_token, tuple(adapters.by_name))
    for name, place in map(_name_and_place, options.lora_modules):
        if name in loaded.added:
            raise LoadError(f"--lora-modules has {name!r} twice, at {loaded.added[name]} and {place}; give two names")
        loaded.add(name, place)
    return replace(loaded, default=_default(loaded, checkpoint, architecture, options))


def _default(
    loaded: LoadedAdapters, checkpoint: Checkpoint, architecture: Architecture, options: EngineConfig
) -> str | None:
    known = ", ".join(loaded.names) or "none"
    if (asked := options.default_adapter) is not None:
        if asked not in loaded.names:
            raise LoadError(f"{checkpoint.folder} has no adapter {asked!r}; there are: {known}")
        return asked
    if not loaded.own or not architecture.default_adapters:
        return None
    first, *_ = architecture.default_adapters
    found = next((name for name in architecture.default_adapters if name in loaded.own), None)
    if found != first:
        logger.warning("%s has no adapter %r; %s is used, there are: %s", checkpoint.folder, first, found, known)
    return found


def _name_and_place(module: str) -> tuple[str, str]:
    """name=place, or the same as JSON."""
    if module.lstrip().startswith("{"):
        try:
            entry = json.loads(module)
            return str(entry["name"]), str(entry["path"])
        except (ValueError, KeyError):
            raise LoadError(f"--lora-modules {module!r} is no JSON with a name and a path") from None
    name, equals, place = module.partition("=")
    if not (name and equals and place):
        raise LoadError(f"--lora-modules {module!r} is no adapter; write name=folder")
    return name, place


def bundled(checkpoint: Checkpoint) -> dict[str, Checkpoint]:
    """The adapter folders that come with a checkpoint, by name; elsewhere in it lies what training left behind."""
    files = sorted(checkpoint.folder.glob(f"adapters/*/{CONFIG}"))
    return {file.parent.name: Checkpoint(str(file.parent), file.parent) for file in files}


def _open(checkpoint: Checkpoint) -> Weights:
    for file in WEIGHTS:
        if (path := checkpoint.path(file)) is not None:
            return open_file(path)
    raise LoadError(f"{checkpoint.folder} has no adapter weights: looked for {' and '.join(WEIGHTS)}")


def _halves(weights: Weights) -> dict[str, tuple[Tensor, Tensor]]:
    """down [rank, inputs] and up [outputs, rank] by the name of the module they change."""
    found: dict[str, dict[str, Tensor]] = {}
    for name in weights.names():
        match = NAME.fullmatch(name.removeprefix(PEFT_PREFIX))
        if match is None:
            raise LoadError(
                f"{weights.source}: {name} is no low-rank change; adapters that also replace whole layers "
                "(modules_to_save) or change biases cannot be read, merge them into the model"
            )
        found.setdefault(match["module"], {})[match["half"]] = weights.get(name)
    for module, halves in found.items():
        if set(halves) != {"A", "B"}:
            raise LoadError(f"{weights.source}: {module} has only lora_{next(iter(halves))}; download it again")
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}


def _refuse_other_kinds(config: Mapping[str, Any], source: str) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA" or config.get("use_dora"):
        raise LoadError(f"{source}: adapters of the kind {'DoRA' if config.get('use_dora') else kind} cannot be read")
    if config.get("bias", "none") != "none":
        raise LoadError(f"{source}: bias={config['bias']!r} changes biases as well, which cannot be read")


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    alpha = next(_by_pattern(config.get("alpha_pattern"), module), config.get("lora_alpha", rank))
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return float(alpha) / divisor


def _by_pattern(patterns: Mapping[str, Any] | None, module: str) -> Iterator[Any]:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            yield value
