"""AdapterManager: LoRA adapters that requests can name, loaded and unloaded at runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cenote.engine.engine_metrics import EngineMetrics
from cenote.errors import BadRequest, LoadError, UnknownModel, Unsupported
from cenote.loading.checkpoint import find_adapter

if TYPE_CHECKING:
    from cenote.loading.lora import LoRARegistry

# how often it is checked whether requests still use an adapter that is unloaded
POLL_S = 0.02


class AdapterManager:
    def __init__(self, registry: LoRARegistry | None, metrics: EngineMetrics) -> None:
        self.registry = registry  # None: LoRA is not enabled
        self.metrics = metrics
        self._loading: set[str] = set()  # names whose weights are downloaded or read, without holding the lock
        self._condition = threading.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def resolve(self, names: str | Sequence[str | None] | None, num_inputs: int) -> Sequence[str | None]:
        """Return the adapter names of a request: one for all inputs, or one per input."""
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
            raise BadRequest(f"unknown adapter {name!r}; available: {known or 'none'}", param="adapter")
        return [name or self.registry.default_name for name in names]

    def is_builtin(self, adapter: str | None) -> bool:
        """Return whether an adapter is None or part of the checkpoint; the weights of others may be replaced."""
        return adapter is None or (self.registry is not None and adapter in self.registry.builtin)

    def get_generation(self, adapter: str | None) -> int:
        """Return a number that changes whenever the weights of an adapter are loaded, also after it was unloaded."""
        return 0 if self.registry is None or adapter is None else self.registry.generations.get(adapter, 0)

    def add(self, name: str, path: str) -> None:
        """Load an adapter from a folder or the hub; do nothing if one of that name is loaded."""
        if self.registry is None:
            raise Unsupported(f"Got lora_request {name} but LoRA is not enabled!", param="lora_request")
        with self._changing(name):
            if name not in self.registry.names:
                self.registry.add(name, path)

    def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Load an adapter for the server's route, with vLLM's errors; `in_place` replaces one of the same name."""
        if self.registry is None:
            raise Unsupported("LoRA is not enabled; start the server with --enable-lora", param="lora_name")
        with self._changing(name):
            if name in self.registry.builtin or (name in self.registry.added_paths and not in_place):
                raise BadRequest(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                    "set 'load_inplace' to True.",
                    param="lora_name",
                )
            try:
                checkpoint = find_adapter(path, hub=self.registry.hub)
            except LoadError as error:
                raise UnknownModel(
                    f"Loading lora {name} failed: No adapter found for {path}: {error.message}", param="lora_path"
                ) from None
            try:
                self.registry.load(name, checkpoint)
            except LoadError as error:
                raise BadRequest(f"Loading lora {name} failed: {error.message}", param="lora_path") from None

    def unregister(self, name: str) -> None:
        """Reject the adapter in new requests."""
        with self._condition:
            if self.registry is None or name not in self.registry.added_paths:
                raise UnknownModel(f"The lora adapter '{name}' cannot be found.", param="lora_name")
            if name == self.registry.default_name:
                raise BadRequest(
                    f"'{name}' is the default adapter (--default-adapter) and cannot be unloaded", param="lora_name"
                )
            del self.registry.added_paths[name]

    def is_in_use(self, name: str) -> bool:
        """Return whether a request in flight uses the adapter, or its weights are being loaded again."""
        return name in self._loading or any(name in state.adapters for state in self.metrics.requests_in_flight())

    async def free_when_idle(self, name: str) -> None:
        """Free the weights of an adapter when no request uses it, unless one of that name has been loaded since."""

        async def free() -> None:
            while self.is_in_use(name):
                await asyncio.sleep(POLL_S)
            with self._condition:
                if self.registry is not None:
                    self.registry.free_weights(name)

        task = asyncio.create_task(free())  # runs to its end even if the caller is cancelled
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """Load one adapter of a name at a time; a download takes minutes, and other names do not wait for it."""
        with self._condition:
            self._condition.wait_for(lambda: name not in self._loading)
            self._loading.add(name)
        try:
            yield
        finally:
            with self._condition:
                self._loading.discard(name)
                self._condition.notify_all()
