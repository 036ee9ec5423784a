"""The adapters that requests may name, and how they come and go while the engine answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from cenote.engine.engine_metrics import EngineMetrics
from cenote.errors import BadRequest, LoadError, UnknownModel, Unsupported
from cenote.loading.checkpoint import find_adapter
from cenote.loading.lora import LoRARegistry

# how often a request is looked at that still uses what is to be forgotten
POLL_INTERVAL_S = 0.02


class AdapterManager:
    def __init__(self, registry: LoRARegistry | None, metrics: EngineMetrics) -> None:
        self.registry = registry  # None: the model takes none
        self.metrics = metrics
        self._lock = threading.Lock()

    def resolve(self, names: str | Sequence[str | None] | None, num_inputs: int) -> Sequence[str | None]:
        """The adapter of every input, by name; one for all, or one each."""
        if self.registry is None:
            if names is None:
                return [None]
            first = names if isinstance(names, str) else next((name for name in names if name), None)
            raise Unsupported(f"Got lora_request {first} but LoRA is not enabled!", param="adapter")
        if names is None or isinstance(names, str):
            names = [names]
        elif len(names) != num_inputs:
            raise BadRequest(f"The lengths of prompts ({num_inputs}) and lora_request ({len(names)}) must be the same.")
        for name in set(names) - {None, *self.registry.names}:
            known = ", ".join(self.registry.names)
            raise BadRequest(f"no adapter is called {name!r}; there are: {known or 'none'}", param="adapter")
        return [name or self.registry.default_name for name in names]

    def is_builtin(self, adapter: str | None) -> bool:
        """None, or one of the checkpoint's: the names of others may mean something else tomorrow."""
        return adapter is None or (self.registry is not None and adapter in self.registry.builtin)

    def add(self, name: str, path: str) -> None:
        """Load an adapter from a folder or the hub; one of that name that is there already stays."""
        if self.registry is None:
            raise Unsupported(f"Got lora_request {name} but LoRA is not enabled!", param="lora_request")
        with self._lock:
            if name not in self.registry.names:
                self.registry.add(name, path)

    def load(self, name: str, path: str, *, in_place: bool) -> None:
        """The same for clients of a server, in the reference's words."""
        if self.registry is None:
            raise Unsupported("LoRA is not enabled; start the server with --enable-lora", param="lora_name")
        with self._lock:
            if name in self.registry.builtin or (name in self.registry.added_paths and not in_place):
                raise BadRequest(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                    "set 'load_inplace' to True.",
                    param="lora_name",
                )
            try:
                found = find_adapter(path, token=self.registry.hf_token)
            except LoadError as error:
                raise UnknownModel(
                    f"Loading lora {name} failed: No adapter found for {path}: {error.message}", param="lora_path"
                ) from None
            try:
                self.registry.load(name, found)
            except LoadError as error:
                raise BadRequest(f"Loading lora {name} failed: {error.message}", param="lora_path") from None

    def unregister(self, name: str) -> None:
        """From now on nobody may name it."""
        with self._lock:
            if self.registry is None or name not in self.registry.added_paths:
                raise UnknownModel(f"The lora adapter '{name}' cannot be found.", param="lora_name")
            if name == self.registry.default_name:
                raise BadRequest(f"'{name}' is the default adapter (--default-adapter) and stays", param="lora_name")
            del self.registry.added_paths[name]

    def unload_when_idle(self, name: str) -> None:
        """Free its memory when everybody has their answers who named it in time."""
        while any(
            name == wish.adapter for pending in self.metrics.requests_in_flight() for wish in pending.input_options
        ):
            time.sleep(POLL_INTERVAL_S)
        with self._lock:
            if self.registry is not None:
                self.registry.free_weights(name)
