"""The models that this process sends requests to, by every name that requests may use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from cenote.api.admission.controller import AdmissionController
from cenote.api.model_names import list_source_names, split_suffix
from cenote.errors import BadRequest, EngineStopped, LoadError, NotReady, PoolingError, UnknownModel
from cenote.protocol.engine import Engine, ModelStatus
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Role

MAX_LISTED_NAMES = 50

IsSupported = Callable[[ModelInfo], bool]
LoadModel = Callable[[str], Coroutine[Any, Any, None]]  # has a model of the table loaded; returns when it is


@dataclass(slots=True, eq=False)
class EngineUse:
    """An engine that requests are sent to, and its admission.

    A request keeps it until it is answered, so that all of its calls go to one engine, also if the model gets another
    one in the meantime.
    """

    engine: Engine
    admission: AdmissionController
    engine_ids: tuple[int, ...] = ()
    num_users: int = 0  # requests
    on_unused: Callable[[], None] | None = None  # called when the last request has ended

    @property
    def is_ready(self) -> bool:
        """Whether the engine has loaded its model once: if its process is replaced, requests wait in the engine."""
        return self.engine.status != "loading"

    def release(self) -> None:
        self.num_users -= 1
        if not self.num_users and self.on_unused is not None:
            self.on_unused()


class ServedModel:
    def __init__(self, name: str, aliases: Sequence[str] = (), source: str = "") -> None:
        self.name = name  # in responses
        self.aliases = tuple(aliases)
        self.source = source
        self.accepts_source_names = True
        self.use: EngineUse | None = None
        self.is_required = True  # the server is not ready without it
        self.is_first_load = True  # at the start of the server: requests do not wait for it
        self._reported: tuple[ModelStatus, str] = ("loading", "")  # by the supervisor
        self.since = 0.0  # Unix time since when the model does not answer; 0.0 if nothing has failed
        self._known_info: ModelInfo | None = None  # while there is no engine
        self._changed: asyncio.Future[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._loading_since = time.monotonic()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are listed."""
        return (self.name, *self.aliases)

    @property
    def status(self) -> ModelStatus:
        reported = self._reported[0]
        if reported in ("failed", "unloaded", "unloading"):
            return reported
        return "loading" if self.use is None else self.use.engine.status

    @property
    def is_awaited(self) -> bool:
        """Whether requests wait until the model is loaded: always but at the start of the server."""
        return self.status in ("unloaded", "unloading") or (self.status == "loading" and not self.is_first_load)

    @property
    def reason(self) -> str:
        return self._reported[1]

    @property
    def model_info(self) -> ModelInfo | None:
        """What is known about the model; None before it has been loaded for the first time."""
        return self.use.engine.model_info if self.use is not None and self.use.is_ready else self._known_info

    @property
    def engine(self) -> Engine:
        """The engine; raises if it has never been ready."""
        if self.use is None or not self.use.is_ready:
            raise self.make_state_error()
        return self.use.engine

    @property
    def error(self) -> PoolingError | None:
        """Why the model does not answer requests; None while it does."""
        if self.use is None or not self.use.is_ready:
            return self.make_state_error()
        return self.use.engine.dead_error

    def set_use(self, use: EngineUse | None) -> None:
        """Send new requests to another engine, or to none."""
        self._known_info = self.model_info
        self.use = use
        self.notify()

    def report(self, status: ModelStatus, reason: str, model_info: ModelInfo | None, since: float = 0.0) -> None:
        """Take what the supervisor says about the model."""
        if status == "loading" and self._reported[0] != "loading":
            self._loading_since = time.monotonic()
        self._reported, self.since = (status, reason), since
        self._known_info = model_info or self._known_info
        self.notify()

    def notify(self) -> None:
        """Wake up the requests that wait for the model."""
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    async def wait(self, load: LoadModel, deadline_at: float, timeout_s: float) -> EngineUse:
        """Return the engine when it is ready, and have it loaded before if it is not; raise if that takes too long."""
        ends_at = time.monotonic() + timeout_s
        if deadline_at:
            ends_at = min(ends_at, deadline_at)
        while (use := self.use) is None or not use.is_ready:
            if not self.is_awaited:
                raise self.make_state_error()
            if self.status == "unloaded" and self._loading is None:
                self._loading = asyncio.get_running_loop().create_task(load(self.name))
                self._loading.add_done_callback(self._on_loading_done)
            remaining_s = ends_at - time.monotonic()
            if remaining_s <= 0:
                raise self.make_state_error()
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            events = {self._changed, *filter(None, [loading := self._loading])}
            await asyncio.wait(events, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            if loading is not None and loading.done() and not loading.cancelled():
                self._check_loaded(loading)
        return use

    def _check_loaded(self, loading: asyncio.Task[None]) -> None:
        """Raise why the model could not be loaded; details are for the log and for admins."""
        try:
            loading.result()
        except LoadError:
            raise self.make_state_error("failed") from None

    def _on_loading_done(self, task: asyncio.Task[None]) -> None:
        self._loading = None
        if not task.cancelled():
            task.exception()  # those that wait raise it; perhaps none does any more

    def make_state_error(self, status: ModelStatus | None = None) -> PoolingError:
        """Return why the model cannot answer now."""
        status, reason = status or self.status, self.reason
        if status == "failed":
            error: PoolingError = EngineStopped(f"the model {self.name} has failed: {reason}")
            error.http_message = f"the model {self.name} has failed; the reason is in the server log"
            return error
        if status in ("unloaded", "unloading"):
            return NotReady(f"the model {self.name} is not loaded; load it with POST /admin/models/load")
        seconds = time.monotonic() - self._loading_since
        name = f"the model {self.name}" if self.name else "the model"
        return NotReady(f"{name} is loading (for {seconds:.1f} s so far); retry shortly")


class Selection(NamedTuple):
    """What a name in a request selects."""

    model: ServedModel
    adapter: str | None = None  # a LoRA adapter of the model
    role: Role | None = None  # whose prompt is used


class ServedModels:
    def __init__(self) -> None:
        self._models: list[ServedModel] = [ServedModel("")]
        self.by_name: dict[str | None, ServedModel] = {None: self._models[0]}  # listed names; None: the only one
        self._by_source: dict[str, ServedModel] = {}  # without names that several models have
        self.sole: ServedModel | None = self._models[0]  # the model of a server that has only one

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def first(self) -> ServedModel:
        """The model of routes that describe one model."""
        return self._models[0]

    def set(self, models: Sequence[ServedModel]) -> None:
        self._models = list(models) or [ServedModel("")]
        self.sole = self._models[0] if len(self._models) == 1 else None
        self.by_name = {} if self.sole is None else {None: self.sole}
        self.by_name |= {name: model for model in self._models for name in model.names}
        self._by_source = {}
        ambiguous: set[str] = set()
        for model in self._models:
            for name in list_source_names(model.source) if model.accepts_source_names and model.source else ():
                other = self._by_source.setdefault(name, model)
                if other is not model and other.source != model.source:
                    ambiguous.add(name)
        for name in ambiguous:
            del self._by_source[name]

    def find(self, name: str) -> Selection | None:
        """Return what the name selects; None if no model has it."""
        if (found := self._find_base(name)) is not None:
            return found
        if (parts := split_suffix(name)) is None or (found := self._find_base(parts[0])) is None:
            return None
        return Selection(found.model, found.adapter, parts[1])

    def _find_base(self, name: str) -> Selection | None:
        if (model := self.by_name.get(name)) is not None:
            return Selection(model)
        for model in self._models:
            if (model_info := model.model_info) is not None and name in model_info.external_adapters:
                return Selection(model, adapter=name)
        model = self._by_source.get(name)
        return None if model is None else Selection(model)

    def require(self, name: str, param: str | None = None) -> Selection:
        if (found := self.find(name)) is None:
            raise self.make_unknown_error(name, param)
        return found

    def make_unknown_error(self, name: str, param: str | None = None) -> UnknownModel:
        message = f"The model `{name}` does not exist."
        names = [name for model in self._models for name in model.names if name]
        names += [name for model in self._models if (info := model.model_info) for name in info.external_adapters]
        if names:
            message += f" Available: {', '.join(names[:MAX_LISTED_NAMES])}"
        return UnknownModel(message, param=param)

    def list_supporting(self, is_supported: IsSupported) -> list[ServedModel]:
        """Return the models of which it is known that they can do something."""
        return [model for model in self._models if (info := model.model_info) is not None and is_supported(info)]

    def choose(self, is_supported: IsSupported, is_able: IsSupported = bool) -> ServedModel:
        """Return the one model for a request that names none; raise if several, or none, can answer it.

        `is_supported`: by the route; `is_able`: by what the body says.
        """
        for model in self._models:
            if model.status == "loading" and model.model_info is None and model.is_first_load:
                raise model.make_state_error()  # it may be the one
        candidates = self.list_supporting(lambda info: is_supported(info) and is_able(info))
        if len(candidates) > 1 and not self.list_supporting(lambda info: is_supported(replace(info, score_types=()))):
            # the route is one for scores: a reranker is meant rather than an embedding model
            candidates = [model for model in candidates if is_made_for_scores(model.model_info)] or candidates
        if not candidates:  # models that have never been loaded, and may be able to
            candidates = [model for model in self._models if model.model_info is None and model.status != "failed"]
        if len(candidates) == 1:
            return candidates[0]
        names = [f"{model.name} ({describe_tasks(model.model_info)})" for model in candidates or self._models]
        outcome = (
            "several models of this server can answer it. Set `model`, or the header x-model, to one of"
            if candidates
            else "no model of this server can answer it, whichever it names"
        )
        message = f"The request names no model, and {outcome}: {', '.join(names[:MAX_LISTED_NAMES])}"
        raise BadRequest(message, param="model")


def is_made_for_scores(model_info: ModelInfo | None) -> bool:
    return model_info is not None and model_info.score_types[:1] not in (("bi-encoder",), ("sparse",))


def describe_tasks(model_info: ModelInfo | None) -> str:
    return "not loaded yet" if model_info is None else ", ".join(model_info.tasks)
