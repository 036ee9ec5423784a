"""State shared by all routes: the models, the settings, and whether the server is ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from cenote.api.admission.controller import AdmissionController
from cenote.api.admission.counters import Counters
from cenote.api.model_row import ModelRow, describe_model_info
from cenote.api.served_models import EngineUse, ServedModel, ServedModels
from cenote.api.server_context import ServerContext
from cenote.api.server_metrics import LocalServerMetrics, ServerMetrics
from cenote.api.tiktoken_file import load_tiktoken_file
from cenote.api.wire.channel import ReplyT
from cenote.api.wire.control_messages import ListedModels, ListModels, LoadModel
from cenote.api.wire.messages import Call
from cenote.config.server import ServerConfig
from cenote.errors import EngineStopped, NotReady, PoolingError, Unsupported
from cenote.protocol.engine import Engine, ModelStatus
from cenote.utils.bounded_executor import BoundedExecutor

ServerStatus = ModelStatus | Literal["draining"]
# of several models, the server has the first of these states that one of them has
STATUS_ORDER: tuple[ModelStatus, ...] = ("failed", "stopped", "loading", "restarting")


class AdminCaller(Protocol):
    """Has a call for the administration answered: by the supervisor, or here if there is none."""

    async def __call__(self, message: Call[ReplyT], /) -> ReplyT: ...


class AppState(ServerContext):
    admission: AdmissionController  # of the only model; with several, for what is checked before the model is known

    def __init__(self, settings: ServerConfig, counters: Counters | None = None) -> None:
        """`counters`: of what all front-ends have in flight; None if this process is the only one."""
        super().__init__(settings, counters or Counters())
        if settings.tiktoken_file is not None:
            load_tiktoken_file(settings.tiktoken_file)  # now: an error ends the start
        self.models = ServedModels()
        self.admission = self.make_admission(0)
        self.num_in_flight = 0  # requests to the model without a complete response
        self.num_in_flight_elsewhere = 0  # the same, in other front-end processes
        self.metrics_executor = BoundedExecutor("metrics", num_threads=1, max_waiting=64)
        self.metrics: ServerMetrics = LocalServerMetrics(self.counters, self.models)
        self.admin: AdminCaller = self._answer_admin
        self.are_front_ends_ready = True  # False while another front-end process is starting
        self.is_draining = False  # set by start_draining
        # why whoever starts engines cannot act, "" if it can; in a process of its own, a front-end watches it
        self.find_control_error: Callable[[], str] = lambda: ""

    def make_admission(self, slot: int) -> AdmissionController:
        """Return the admission of the model that has this slot of the counters."""
        settings = self.settings
        return AdmissionController(
            max_queue_tokens=settings.max_queue_tokens,
            max_queue_seconds=settings.max_queue_seconds,
            max_inflight_bytes=settings.max_inflight_bytes,
            counters=self.counters,
            slot=slot,
        )

    def set_engine(self, engine: Engine) -> None:
        """Serve one model with this engine."""
        name, *aliases = self.settings.served_model_name or (engine.model_info.name,)
        model = ServedModel(name, aliases, engine.model_info.source or engine.model_info.name)
        model.accepts_source_names = not self.settings.served_model_name
        model.set_use(EngineUse(engine, self.admission))
        self.admission.follow(engine)
        self.models.set([model])

    def start_draining(self) -> None:
        """Report not ready and close connections after their response, but still serve requests."""
        self.is_draining = True

    @property
    def status(self) -> ServerStatus:
        if self.is_draining:
            return "draining"
        statuses = {model.status for model in self.models if model.is_required}
        for status in STATUS_ORDER:
            if status in statuses:
                return status
        return "ready" if self.are_front_ends_ready else "loading"

    @property
    def engine(self) -> Engine:
        """The engine of the first model; raises while it loads."""
        return self.models.first.engine

    async def load_model(self, name: str) -> None:
        """Have a model of the table loaded, for a request that waits for it."""
        await self.admin(LoadModel(name, None))

    async def _answer_admin(self, call: Call[Any]) -> Any:
        """Answer a call for the administration of a server whose engine is in its own process: it can be listed."""
        if not isinstance(call, ListModels):
            raise Unsupported("the engine runs in the process of the server; start it without --in-process-engine")
        return ListedModels(
            [
                ModelRow(
                    name=model.name,
                    aliases=model.aliases,
                    source=model.source,
                    state=model.status,
                    error=model.reason or None,
                    since=model.since or None,
                    **describe_model_info(model.model_info),
                )
                for model in self.models
            ]
        )

    @property
    def has_loaded(self) -> bool:
        """Whether a model has been loaded since the start."""
        return any(model.model_info is not None for model in self.models)

    def find_final_error(self) -> PoolingError | None:
        """Return why the server should be restarted: whoever starts engines cannot act, or nobody does.

        A model that fails is no reason: the supervisor tries it again, and a restart would end those that answer.
        """
        if reason := self.find_control_error():
            return EngineStopped(f"{reason}: engines that exit are not replaced")
        errors = [model.error for model in self.models if model.status == "stopped"]
        return errors[0] if len(errors) == len(self.models) else None

    def check_ready(self) -> None:
        """Raise unless new requests should be sent to this server."""
        errors = [(model, model.error) for model in self.models if model.is_required]
        failed = [(model, error) for model, error in errors if error is not None]
        if failed:
            raise make_unready_error(failed, len(self.models))
        if not self.are_front_ends_ready:
            raise NotReady("not all front-end processes are ready; retry shortly")
        if self.is_draining:
            raise NotReady("the server is shutting down; retry on another instance")


def make_unready_error(failed: list[tuple[ServedModel, PoolingError]], num_models: int) -> PoolingError:
    """Return an error that names the models that do not answer."""
    model, error = failed[0]
    if num_models == 1:
        return error if model.status == "loading" else EngineStopped(str(error))
    is_final = any(model.status in ("failed", "stopped") for model, _ in failed)
    names = ", ".join(f"{model.name} ({model.status})" for model, _ in failed)
    return (EngineStopped if is_final else NotReady)(f"{len(failed)} of {num_models} models do not answer: {names}")
