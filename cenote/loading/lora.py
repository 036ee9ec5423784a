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
from cenote.layers.lora import LoRAAdapter, LoRAContext, LoRAWeights
from cenote.loading.checkpoint import Checkpoint, find_adapter
from cenote.loading.weight_loader import WeightLoader
from cenote.loading.weights import CheckpointWeights, open_weights_file
from cenote.models.architecture import Architecture, StoredAdapters

logger = logging.getLogger("cenote")

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
VISION_PREFIX = "vision."  # before the paths of all that a tower has
PEFT_PREFIX = "base_model.model."
EMBEDDING_TABLES = ("embed.tokens", "embed.positions", "embed.token_types")
LORA_TENSOR_NAME = re.compile(
    r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])(?:\.weight|\.default\.weight|)$"
)


@dataclass(frozen=True, slots=True)
class LoRALoader:
    """Reads adapters for one loaded model."""

    weight_loader: WeightLoader
    prefixes: tuple[str, ...]  # what may stand before the backbone's names
    dtype: torch.dtype
    device: torch.device

    def load(self, checkpoint: Checkpoint) -> LoRAAdapter:
        """The changes of a PEFT folder, by the paths of our modules."""
        config = checkpoint.read_json_object(ADAPTER_CONFIG)
        if not config:
            raise LoadError(
                f"{checkpoint.folder} is no adapter: looked for {ADAPTER_CONFIG}; give a folder that PEFT saved"
            )
        _check_supported(config, f"{checkpoint.folder / ADAPTER_CONFIG}")
        halves = _lora_pairs(_open_adapter_weights(checkpoint))
        changes = {
            module: (down, up * _lora_scaling(config, module, down.shape[0])) for module, (down, up) in halves.items()
        }
        return self.map_to_modules(changes, str(checkpoint.folder))

    def map_to_modules(self, changes: Mapping[str, tuple[Tensor, Tensor]], source: str) -> LoRAAdapter:
        """Changes by the checkpoint's names of the modules, moved to the modules of ours that hold their weights."""
        adapter: dict[str, list[LoRAWeights]] = {}
        for module, (down, up) in changes.items():
            places = self.weight_loader.locate(self._strip_prefix(module))
            if not places:
                raise LoadError(
                    f"{source}: no layer of the model that takes adapters is called {module}; "
                    "was it made for another model?"
                )
            if any(path.startswith(VISION_PREFIX) for path, *_ in places):
                raise LoadError(
                    f"{source}: {module} is a layer that reads images, which adapters cannot change here; "
                    "merge the adapter into the model"
                )
            for path, start, rows, inputs in places:  # several, where layers share their weights
                # a table's change is written for its transpose, as PEFT does for embeddings
                expected = (inputs, rows) if path in EMBEDDING_TABLES else (rows, inputs)
                if (found := (up.shape[0], down.shape[1])) != expected:
                    raise LoadError(f"{source}: {module} changes a layer of {found}, the model's has {expected}")
                adapter.setdefault(path, []).append(self._make_weights(down, up, start))
        return adapter

    def _strip_prefix(self, module: str) -> str:
        for prefix in sorted(self.prefixes, key=len, reverse=True):
            if prefix and module.startswith(prefix) and self.weight_loader.locate(module.removeprefix(prefix)):
                return module.removeprefix(prefix)
        return module

    def load_stored(self, described: StoredAdapters, num_layers: int) -> dict[str, LoRAAdapter]:
        """The adapters that lie among the weights of the model itself, by name."""
        adapters: dict[str, dict[str, list[LoRAWeights]]] = {name: {} for name in described.tasks}
        for ours, (down_name, up_name) in described.matrices.items():
            for layer in range(num_layers) if "*" in ours else (0,):
                path = ours.replace("*", str(layer)).removesuffix(".weight")
                downs, ups = (self.weight_loader.read(name.replace("*", str(layer))) for name in (down_name, up_name))
                for name, down, up in zip(described.tasks, downs, ups * described.scaling, strict=True):
                    # a table is looked up by row: its change is written for the transpose
                    down, up = (up.T, down.T) if path in EMBEDDING_TABLES else (down, up)
                    adapters[name][path] = [self._make_weights(down, up)]
        return dict(adapters)

    def _make_weights(self, down: Tensor, up: Tensor, start: int = 0) -> LoRAWeights:
        return LoRAWeights(down.to(self.device, self.dtype), up.to(self.device, self.dtype), start)


@dataclass(frozen=True, slots=True)
class LoRARegistry:
    """The adapters of a model, and how to add more of them."""

    context: LoRAContext
    loader: LoRALoader
    default_name: str | None  # for requests that name none
    hf_token: str | None  # for the hub
    builtin: tuple[str, ...]  # those that are part of the model
    added_paths: dict[str, str] = field(default_factory=dict)  # the others, and where they lie

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.builtin, *self.added_paths)

    def add(self, name: str, path: str) -> None:
        """Read one more from a folder or the hub, or the one of that name anew."""
        if name in self.builtin:
            raise LoadError(f"{name!r} is an adapter of the model itself; give the one at {path} another name")
        self.load(name, find_adapter(path, token=self.hf_token))

    def load(self, name: str, checkpoint: Checkpoint) -> None:
        self.context.adapters[name] = self.loader.load(checkpoint)
        self.added_paths[name] = checkpoint.name

    def free_weights(self, name: str) -> None:
        """Free its memory, unless one of that name has come since."""
        if name not in self.added_paths:
            self.context.adapters.pop(name, None)


def load_adapters(
    loader: LoRALoader, checkpoint: Checkpoint, architecture: Architecture, options: EngineConfig
) -> LoRARegistry | None:
    """Those among the weights, those in folders beside them and those that the options name; None: none may come."""
    described, folders = architecture.adapters, find_bundled(checkpoint)
    if not (described or folders or options.lora_modules or options.enable_lora):
        if options.default_adapter is not None:
            raise LoadError(f"default_adapter {options.default_adapter!r}: {checkpoint.folder} has no adapters")
        if architecture.default_adapters:
            logger.warning("%s comes without the adapters that it was trained with", checkpoint.folder)
        return None
    adapters = LoRAContext()
    if described is not None:
        adapters.adapters |= loader.load_stored(described, architecture.backbone.num_layers)
    for name, folder in folders.items():
        adapters.adapters[name] = loader.load(folder)
    loaded = LoRARegistry(adapters, loader, None, options.hf_token, tuple(adapters.adapters))
    for name, place in map(_parse_lora_module, options.lora_modules):
        if name in loaded.added_paths:
            raise LoadError(
                f"--lora-modules has {name!r} twice, at {loaded.added_paths[name]} and {place}; give two names"
            )
        loaded.add(name, place)
    return replace(loaded, default_name=_default_adapter(loaded, checkpoint, architecture, options))


def _default_adapter(
    loaded: LoRARegistry, checkpoint: Checkpoint, architecture: Architecture, options: EngineConfig
) -> str | None:
    known = ", ".join(loaded.names) or "none"
    if (asked := options.default_adapter) is not None:
        if asked not in loaded.names:
            raise LoadError(f"{checkpoint.folder} has no adapter {asked!r}; there are: {known}")
        return asked
    if not loaded.builtin or not architecture.default_adapters:
        return None
    first, *_ = architecture.default_adapters
    found = next((name for name in architecture.default_adapters if name in loaded.builtin), None)
    if found != first:
        logger.warning("%s has no adapter %r; %s is used, there are: %s", checkpoint.folder, first, found, known)
    return found


def _parse_lora_module(module: str) -> tuple[str, str]:
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


def find_bundled(checkpoint: Checkpoint) -> dict[str, Checkpoint]:
    """The adapter folders that come with a checkpoint, by name; elsewhere in it lies what training left behind."""
    files = sorted(checkpoint.folder.glob(f"adapters/*/{ADAPTER_CONFIG}"))
    return {file.parent.name: Checkpoint(str(file.parent), file.parent) for file in files}


def _open_adapter_weights(checkpoint: Checkpoint) -> CheckpointWeights:
    for file in ADAPTER_WEIGHTS:
        if (path := checkpoint.find_file(file)) is not None:
            return open_weights_file(path)
    raise LoadError(f"{checkpoint.folder} has no adapter weights: looked for {' and '.join(ADAPTER_WEIGHTS)}")


def _lora_pairs(weights: CheckpointWeights) -> dict[str, tuple[Tensor, Tensor]]:
    """down [rank, inputs] and up [outputs, rank] by the name of the module they change."""
    found: dict[str, dict[str, Tensor]] = {}
    for name in weights.names():
        match = LORA_TENSOR_NAME.fullmatch(name.removeprefix(PEFT_PREFIX))
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


def _check_supported(config: Mapping[str, Any], source: str) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA" or config.get("use_dora"):
        raise LoadError(f"{source}: adapters of the kind {'DoRA' if config.get('use_dora') else kind} cannot be read")
    if config.get("bias", "none") != "none":
        raise LoadError(f"{source}: bias={config['bias']!r} changes biases as well, which cannot be read")


def _lora_scaling(config: Mapping[str, Any], module: str, rank: int) -> float:
    alpha = next(_matching_values(config.get("alpha_pattern"), module), config.get("lora_alpha", rank))
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return float(alpha) / divisor


def _matching_values(patterns: Mapping[str, Any] | None, module: str) -> Iterator[Any]:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            yield value
