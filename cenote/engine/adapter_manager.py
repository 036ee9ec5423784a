"""The adapters that requests may name, and how they come and go while the engine answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from cenote.engine.engine_metrics import Records
from cenote.errors import BadRequest, LoadError, UnknownModel, Unsupported
from cenote.loading.checkpoint import find_adapter
from cenote.loading.lora import LoadedAdapters

# how often a request is looked at that still uses what is to be forgotten
LOOK_S = 0.02


class Lending:
    def __init__(self, loaded: LoadedAdapters | None, records: Records) -> None:
        self.loaded = loaded  # None: the model takes none
        self.records = records
        self._changing = threading.Lock()

    def chosen(self, asked: str | Sequence[str | None] | None, num_inputs: int) -> Sequence[str | None]:
        """The adapter of every input, by name; one for all, or one each."""
        if self.loaded is None:
            if asked is None:
                return [None]
            first = asked if isinstance(asked, str) else next((name for name in asked if name), None)
            raise Unsupported(f"Got lora_request {first} but LoRA is not enabled!", param="adapter")
        if asked is None or isinstance(asked, str):
            asked = [asked]
        elif len(asked) != num_inputs:
            raise BadRequest(f"The lengths of prompts ({num_inputs}) and lora_request ({len(asked)}) must be the same.")
        for name in set(asked) - {None, *self.loaded.names}:
            known = ", ".join(self.loaded.names)
            raise BadRequest(f"no adapter is called {name!r}; there are: {known or 'none'}", param="adapter")
        return [name or self.loaded.default for name in asked]

    def is_own(self, adapter: str | None) -> bool:
        """None, or one of the checkpoint's: the names of others may mean something else tomorrow."""
        return adapter is None or (self.loaded is not None and adapter in self.loaded.own)

    def add(self, name: str, place: str) -> None:
        """Load an adapter from a folder or the hub; one of that name that is there already stays."""
        if self.loaded is None:
            raise Unsupported(f"Got lora_request {name} but LoRA is not enabled!", param="lora_request")
        with self._changing:
            if name not in self.loaded.names:
                self.loaded.add(name, place)

    def load(self, name: str, place: str, *, in_place: bool) -> None:
        """The same for clients of a server, in the reference's words."""
        if self.loaded is None:
            raise Unsupported("LoRA is not enabled; start the server with --enable-lora", param="lora_name")
        with self._changing:
            if name in self.loaded.own or (name in self.loaded.added and not in_place):
                raise BadRequest(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                    "set 'load_inplace' to True.",
                    param="lora_name",
                )
            try:
                found = find_adapter(place, token=self.loaded.token)
            except LoadError as error:
                raise UnknownModel(
                    f"Loading lora {name} failed: No adapter found for {place}: {error.message}", param="lora_path"
                ) from None
            try:
                self.loaded.read(name, found)
            except LoadError as error:
                raise BadRequest(f"Loading lora {name} failed: {error.message}", param="lora_path") from None

    def hide(self, name: str) -> None:
        """From now on nobody may name it."""
        with self._changing:
            if self.loaded is None or name not in self.loaded.added:
                raise UnknownModel(f"The lora adapter '{name}' cannot be found.", param="lora_name")
            if name == self.loaded.default:
                raise BadRequest(f"'{name}' is the default adapter (--default-adapter) and stays", param="lora_name")
            del self.loaded.added[name]

    def forget(self, name: str) -> None:
        """Free its memory when everybody has their answers who named it in time."""
        while any(name == wish.adapter for pending in self.records.everybody() for wish in pending.wishes):
            time.sleep(LOOK_S)
        with self._changing:
            if self.loaded is not None:
                self.loaded.forget(name)
