"""RemoteEngines: the engines that a front-end is connected with, and which models they serve."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol

from cenote.api.app_state import AppState
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.front_ends.replica_choice import ReplicaLoads
from cenote.api.front_ends.replica_set import ReplicaSet
from cenote.api.served_models import EngineUse, ServedModel
from cenote.api.wire.control_messages import (
    ChangeAdapters,
    EngineExited,
    EngineState,
    FrontEndReady,
    LinkLost,
    ModelState,
    ModelStates,
    PoisonFound,
    ReplayStats,
)
from cenote.api.wire.messages import from_json
from cenote.protocol.model_info import ModelInfo


class EngineReports(Protocol):
    def report(self, message: LinkLost | PoisonFound | ReplayStats | FrontEndReady) -> None:
        """Tell the supervisor."""
        ...


class RemoteEngines:
    """Follow the messages of the supervisor: connect engines, and let the models use them."""

    def __init__(self, app_state: AppState, reports: EngineReports) -> None:
        self.app_state = app_state
        self.reports = reports
        self._base_admission = app_state.admission
        self.engines: dict[int, RemoteEngine] = {}  # by id
        self._uses: dict[tuple[int, ...], EngineUse] = {}  # by the ids of their engines
        self._wanted: dict[str, ModelState] = {}  # by name of the model
        self._releasing: dict[int, asyncio.Future[None]] = {}  # by engine id
        self._released: set[int] = set()
        self._is_draining = self._is_settled = False

    def add_link(self, sock: socket.socket, engine_id: int) -> None:
        """Connect with an engine process that has just been started."""
        if (engine := self._get_engine(engine_id)) is None:
            sock.close()
        else:
            engine.start_connect(sock)

    def set_state(self, state: EngineState) -> None:
        if (engine := self._get_engine(state.engine_id)) is not None:
            engine.availability.on_report(state.status, state.reason)
            self._on_changed()

    def on_exited(self, exited: EngineExited) -> None:
        if (engine := self._get_engine(exited.engine_id)) is not None:
            engine.on_engine_exited(exited)

    def add_poison(self, found: PoisonFound) -> None:
        if (engine := self._get_engine(found.engine_id)) is not None:
            engine.quarantine.add_poison(found.digests, found.reason)

    def set_models(self, states: ModelStates) -> None:
        """Serve these models, and no others."""
        known = {model.name: model for model in self.app_state.models if model.name}
        models = []
        for state in states.models:
            model = known.get(state.name) or ServedModel(state.name)
            model.aliases, model.source = state.aliases, state.source
            model.accepts_source_names = state.accepts_source_names
            model.is_required, model.is_first_load = state.is_required, state.is_first_load
            info = from_json(state.model_info, type=ModelInfo) if state.model_info else None
            model.report(state.status, state.reason, info, state.since)
            models.append(model)
        self._wanted = {state.name: state for state in states.models}
        self.app_state.models.set(models)
        self._on_changed()

    def release(self, engine_id: int, released: asyncio.Future[None]) -> None:
        """Close the link to an engine when no request uses it; `released` is done then."""
        self._releasing[engine_id] = released
        self._close_released()

    def find_hang(self) -> tuple[str, float] | None:
        """Return a stage that does not finish, and since when; called by the heartbeat thread."""
        models = [engine.text_models.last for engine in list(self.engines.values())]
        return next((hang for texts in models if texts is not None and (hang := texts.find_hang())), None)

    def start_draining(self) -> None:
        """Do not wait for other engine processes: the server shuts down."""
        self._is_draining = True
        replica_sets = [use.engine for use in self._uses.values() if isinstance(use.engine, ReplicaSet)]
        for engine in (*self.engines.values(), *replica_sets):
            engine.availability.start_draining()

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def _get_engine(self, engine_id: int) -> RemoteEngine | None:
        """Return the engine, which a link or a message names for the first time; None if it has been released."""
        if engine_id in self._released:
            return None
        if (engine := self.engines.get(engine_id)) is None:
            engine = self.engines[engine_id] = RemoteEngine(
                self._on_changed, lambda: self.reports.report(LinkLost(engine_id)), engine_id
            )
            engine.availability.replay_timeout_s = self.app_state.settings.replay_timeout_s
            engine.on_replay = self.reports.report
            engine.change_adapter = lambda *change: self.app_state.admin(ChangeAdapters(engine_id, *change))
            engine.quarantine.on_poison = lambda digests, reason: self.reports.report(
                PoisonFound(engine_id, digests, reason)
            )
            if self._is_draining:
                engine.availability.start_draining()
        return engine

    def _get_use(self, state: ModelState) -> EngineUse | None:
        """Return the use of the engines of a model, which other models may share."""
        if (use := self._uses.get(state.engine_ids)) is not None:
            return use
        engines = [engine for engine in map(self._get_engine, state.engine_ids) if engine is not None]
        if not engines:
            return None
        admission = self.app_state.make_admission(state.slot)
        if state.model_info:  # known also while the engine restarts, in a front-end that was started later
            model_info = from_json(state.model_info, type=ModelInfo)
            for engine in engines:
                engine.set_default_model_info(model_info)
        joined = self._join(engines, state.slot)
        use = self._uses[state.engine_ids] = EngineUse(joined, admission, state.engine_ids)
        use.on_unused = self._close_released
        return use

    def _join(self, engines: Sequence[RemoteEngine], slot: int) -> RemoteEngine | ReplicaSet:
        """Return the engine that spreads requests over the replicas of a model."""
        if len(engines) == 1:
            return engines[0]
        replicas = ReplicaSet(engines, ReplicaLoads(len(engines), self.app_state.counters, slot))
        replicas.availability.replay_timeout_s = self.app_state.settings.replay_timeout_s
        if self._is_draining:
            replicas.availability.start_draining()
        return replicas

    def _on_changed(self) -> None:
        """Let each model use the engines that the supervisor has assigned to it, once they are ready."""
        models = self.app_state.models
        for model in models:
            state = self._wanted.get(model.name)
            use = self._get_use(state) if state is not None and state.engine_ids else None
            if use is not model.use and (use is None or model.use is None or use.is_ready):
                model.set_use(use)
            model.notify()
        sole = models.sole
        self.app_state.admission = self._base_admission if sole is None or sole.use is None else sole.use.admission
        self._close_released()
        if not self._is_settled and self._wanted and all(map(is_settled, models)):
            self._is_settled = True  # every model that the server needs answers requests, or has failed
            self.reports.report(FrontEndReady())

    def _close_released(self) -> None:
        for engine_id, released in list(self._releasing.items()):
            use = next((use for use in self._uses.values() if engine_id in use.engine_ids), None)
            if use is not None:
                if use.num_users or any(model.use is use for model in self.app_state.models):
                    continue
                if (self._releasing.keys() | self._released).issuperset(use.engine_ids):
                    del self._uses[use.engine_ids]
            del self._releasing[engine_id]
            self._released.add(engine_id)
            if (engine := self.engines.pop(engine_id, None)) is not None:
                engine.close()
            if not released.done():  # the supervisor may have given up waiting
                released.set_result(None)


def is_settled(model: ServedModel) -> bool:
    """Whether the start of the server does not wait for the model any more."""
    return not model.is_required or model.status == "failed" or model.error is None
