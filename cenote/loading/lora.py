"""Load LoRA adapters from PEFT folders and from checkpoints, and map them to modules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import torch

from cenote.config.engine import EngineConfig, HubAccess
from cenote.errors import LoadError
from cenote.layers.lora import LoRAAdapter, LoRAContext, LoRAWeights
from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.adapter_files import check_without_adapters, find_bundled, parse_lora_module
from cenote.loading.checkpoint import ADAPTER_CONFIG, Checkpoint, find_adapter
from cenote.loading.merged_weights import POOLER
from cenote.loading.peft_files import (
    check_lora_config,
    compute_scalings,
    open_adapter_weights,
    read_full_tensors,
    read_lora_pairs,
)
from cenote.loading.weight_loader import WeightLoader
from cenote.models.architecture import Architecture, StoredAdapters
from cenote.utils.array_conversion import scale
from cenote.utils.arrays import Array

logger = logging.getLogger("cenote")

VISION_PREFIX = "vision."  # module path prefix of the vision tower
EMBEDDING_TABLES = ("embed.tokens", "embed.positions", "embed.token_types")


@dataclass(frozen=True, slots=True)
class LoRALoader:
    """Load adapters for one loaded model."""

    weight_loader: WeightLoader
    architecture: Architecture
    layers: frozenset[str]  # paths of the layers of the backbone that adapters can change
    dtype: torch.dtype
    device: torch.device

    def load(self, checkpoint: Checkpoint) -> LoRAAdapter:
        """Load a PEFT folder."""
        config = checkpoint.read_json_object(ADAPTER_CONFIG)
        if not config:
            raise LoadError(
                f"{checkpoint.folder} is not an adapter: no {ADAPTER_CONFIG}; expected a folder saved by PEFT"
            )
        check_lora_config(config, f"{checkpoint.folder / ADAPTER_CONFIG}")
        weights = open_adapter_weights(checkpoint)
        if others := read_full_tensors(weights):
            raise LoadError(
                f"{weights.source}: {next(iter(others.values()))} is not a LoRA tensor; adapters with full layers "
                "(modules_to_save) or biases are not supported, merge them into the model"
            )
        pairs = read_lora_pairs(weights)
        scalings = compute_scalings(config, pairs, str(checkpoint.folder / ADAPTER_CONFIG))
        changes = {module: (down, scale(up, scalings[module])) for module, (down, up) in pairs.items()}
        return self.map_to_modules(changes, str(checkpoint.folder))

    def map_to_modules(self, changes: Mapping[str, tuple[Array, Array]], source: str) -> LoRAAdapter:
        """Map LoRA weights by checkpoint module names to the modules that hold these weights."""
        adapter: dict[str, list[LoRAWeights]] = {}
        unused = [module for module in changes if self._is_unused(module)]
        for module, (down, up) in changes.items():
            locations = self.weight_loader.locate(self._strip_prefix(module))
            if module in unused and len(unused) < len(changes):
                continue
            is_of_head = any(map(self.weight_loader.is_read_alone, self._list_names(module)))
            if not locations and not is_of_head:
                raise LoadError(
                    f"{source}: the model has no layer {module} that supports LoRA; "
                    "the adapter may be for another model"
                )
            if any(path.startswith(VISION_PREFIX) for path, *_ in locations):
                raise LoadError(
                    f"{source}: LoRA is not supported in the vision tower ({module}); merge the adapter into the model"
                )
            if is_of_head or any(path not in self.layers for path, *_ in locations):
                raise LoadError(
                    f"{source}: LoRA is not supported in {module}, which is not a linear layer or an embedding table "
                    "of the backbone alone; merge the adapter into the model"
                )
            for path, start, rows, inputs in locations:  # more than one if layers share weights
                # PEFT stores LoRA weights of embeddings for the transposed table
                expected = (inputs, rows) if path in EMBEDDING_TABLES else (rows, inputs)
                if (found := (up.shape[0], down.shape[1])) != expected:
                    raise LoadError(f"{source}: {module} has shape {found}, the layer of the model has {expected}")
                adapter.setdefault(path, []).append(self._make_weights(down, up, start))
        if unused:
            logger.warning("%s: updates of %s are not applied, as no task of the model uses it", source, unused[0])
        return adapter

    def _is_unused(self, module: str) -> bool:
        """Return whether the model has this layer and reads it for no task, such as the pooler of a BERT embedder."""
        names, loader = self._list_names(module), self.weight_loader
        patterns = self.architecture.unused_weights
        is_known = any(fnmatchcase(f"{name}.weight", pattern) for name in names for pattern in patterns)
        is_read = any(loader.is_read_alone(name) for name in names) or loader.locate(self._strip_prefix(module))
        # a language model without lm_head may make a head of its embedding table
        is_stored = any(loader.has(f"{name}.weight") for name in names)
        return is_known and not is_read and (is_stored or module.endswith(POOLER))

    def _list_names(self, module: str) -> list[str]:
        """Return the names that a module of an adapter may have in the checkpoint."""
        return [module.removeprefix(prefix) for prefix in ("", *self.architecture.prefixes)]

    def _strip_prefix(self, module: str) -> str:
        for prefix in sorted(self.architecture.prefixes, key=len, reverse=True):
            if prefix and module.startswith(prefix) and self.weight_loader.locate(module.removeprefix(prefix)):
                return module.removeprefix(prefix)
        return module

    def load_stored(self, stored: StoredAdapters, num_layers: int) -> dict[str, LoRAAdapter]:
        """Load the adapters stored in the checkpoint, by name."""
        adapters: dict[str, dict[str, list[LoRAWeights]]] = {name: {} for name in stored.tasks}
        for name_pattern, (down_name, up_name) in stored.matrices.items():
            for layer in range(num_layers) if "*" in name_pattern else (0,):
                path = name_pattern.replace("*", str(layer)).removesuffix(".weight")
                downs, ups = (self.weight_loader.read(name.replace("*", str(layer))) for name in (down_name, up_name))
                for name, down, up in zip(stored.tasks, downs, scale(ups, stored.scaling), strict=True):
                    # embedding tables are looked up by row: LoRA weights are for the transpose
                    down, up = (up.T, down.T) if path in EMBEDDING_TABLES else (down, up)
                    adapters[name][path] = [self._make_weights(down, up)]
        return dict(adapters)

    def _make_weights(self, down: Array, up: Array, start: int = 0) -> LoRAWeights:
        a, b = (to_tensor(matrix).to(self.device, self.dtype) for matrix in (down, up))
        return LoRAWeights(a, b, start)


@dataclass(frozen=True, slots=True)
class LoRARegistry:
    """The loaded adapters of a model."""

    context: LoRAContext
    loader: LoRALoader
    default_name: str | None  # for requests without an adapter
    hub: HubAccess
    builtin: tuple[str, ...]  # adapters that come with the checkpoint
    added_paths: dict[str, str] = field(default_factory=dict)  # other adapters -> their paths
    generations: dict[str, int] = field(default_factory=dict)  # how often weights were loaded under a name

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.builtin, *self.added_paths)

    def add(self, name: str, path: str) -> None:
        """Load an adapter from a folder or the hub; replace one of the same name."""
        if name in self.builtin:
            raise LoadError(f"{name!r} is an adapter of the checkpoint; use another name for {path}")
        self.load(name, find_adapter(path, hub=self.hub))

    def load(self, name: str, checkpoint: Checkpoint) -> None:
        self.context.adapters[name] = self.loader.load(checkpoint)
        self.generations[name] = self.generations.get(name, 0) + 1  # not before: batches use the old weights until then
        self.added_paths[name] = checkpoint.name

    def free_weights(self, name: str) -> None:
        """Remove the weights, unless an adapter of that name has been added since."""
        if name not in self.added_paths:
            self.context.adapters.pop(name, None)


def load_adapters(
    loader: LoRALoader, checkpoint: Checkpoint, architecture: Architecture, options: EngineConfig
) -> LoRARegistry | None:
    """Load adapters stored in the checkpoint, bundled with it and named by options; None if LoRA is not enabled."""
    stored, folders = architecture.adapters, find_bundled(checkpoint)
    if not (stored or folders or options.lora_modules or options.enable_lora):
        check_without_adapters(options, checkpoint, architecture)
        return None
    adapters = LoRAContext()
    if stored is not None:
        adapters.adapters |= loader.load_stored(stored, architecture.backbone.num_layers)
    for name, folder in folders.items():
        adapters.adapters[name] = loader.load(folder)
    loaded = LoRARegistry(adapters, loader, None, options.hub, tuple(adapters.adapters))
    for name, path in map(parse_lora_module, options.lora_modules):
        if name in loaded.added_paths:
            raise LoadError(
                f"--lora-modules has {name!r} twice, for {loaded.added_paths[name]} and {path}; names must be unique"
            )
        loaded.add(name, path)
    return replace(loaded, default_name=_default_adapter(loaded, checkpoint, architecture, options))


def _default_adapter(
    loaded: LoRARegistry, checkpoint: Checkpoint, architecture: Architecture, options: EngineConfig
) -> str | None:
    known = ", ".join(loaded.names) or "none"
    if (requested := options.default_adapter) is not None:
        if requested not in loaded.names:
            raise LoadError(f"{checkpoint.folder} has no adapter {requested!r}; available: {known}")
        return requested
    if not loaded.builtin or not architecture.default_adapters:
        return None
    first, *_ = architecture.default_adapters
    found = next((name for name in architecture.default_adapters if name in loaded.builtin), None)
    if found != first:
        logger.warning("%s has no adapter %r; using %s, available: %s", checkpoint.folder, first, found, known)
    return found
