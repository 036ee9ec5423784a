"""Messages between the supervisor and the processes that it starts: settings, states, statistics."""

from __future__ import annotations

from typing import Literal

import msgspec

from cenote.api.model_row import ModelRow
from cenote.api.wire.messages import Call, Done, JSONBytes, Message, MetricsCall, MetricsResponse, SerializedError
from cenote.config.server import ServerConfig
from cenote.protocol.engine import EngineStatus, ModelStatus

# from the supervisor to the engine process


class EngineInit(Message):
    """The first message: the model to load."""

    settings: ServerConfig
    config: JSONBytes  # EngineConfig, as encoded by `encode_engine_config`
    adapters: dict[str, str]  # path by name, of adapters that requests had loaded before a restart
    engine_number: int = 0  # of engine processes that have exited before
    cpus: tuple[int, ...] = ()  # that the process runs on; empty: all
    num_threads: int = 0  # of torch; 0: its default


class SetAdapters(Message):
    """The answer to EngineLoaded: the adapters that the model has by now. Then the engine serves requests."""

    adapters: dict[str, str]  # path by name
    changed: list[str]  # names of those that were loaded since the process was started, perhaps from the same path


class ChangeAdapter(Call[Done]):
    """Load or unload an adapter; answered when every front-end knows."""

    name: str
    path: str | None  # None: unload it
    in_place: bool = False  # it may have been loaded before


class StopEngine(Message):
    """All front-ends have finished: exit."""


# from an engine or front-end process to the supervisor


class LoadFailed(Message):
    """The model cannot be loaded, or HTTP cannot be served; the process exits."""

    error: SerializedError


# from the engine process to the supervisor


class EngineLoaded(Message):
    """The model is loaded; requests follow after SetAdapters."""

    model_info: JSONBytes
    adapters: dict[str, str]  # path by name, also of those in its options
    device_bytes: int = 0  # memory of the GPU in use; 0 on a CPU
    has_torch: bool = False  # whether the process has imported it


class EngineFailed(Message):
    """The engine has stopped by itself; the process exits."""

    error: SerializedError


# from the supervisor to a front-end process


class Init(Message):
    """The first message on a channel."""

    settings: ServerConfig
    front_end_id: int  # counted from 1
    started_at: float  # start of the server, by the monotonic clock, which all processes share
    created: int  # the same as Unix time


class ModelState(msgspec.Struct, array_like=True):
    """One model of the server, as front-ends see it."""

    name: str
    aliases: tuple[str, ...]
    source: str
    accepts_source_names: bool
    status: ModelStatus
    reason: str  # why it has failed, is not loaded or is being restarted
    is_required: bool  # the server is not ready without it
    is_first_load: bool  # its first load at the start of the server: requests do not wait for it
    engine_ids: tuple[int, ...]  # of the engines that requests are sent to; empty while it is not loaded
    slot: int  # of its counters
    model_info: JSONBytes  # empty before it has been loaded for the first time
    since: float = 0.0  # Unix time since when it does not answer for that reason; 0.0 without one


class ModelStates(Message):
    """All models of the server; sent when one is added, changes or is removed."""

    models: list[ModelState]


class EngineState(Message):
    """Why an engine does not answer at the moment; sent when that changes."""

    engine_id: int
    status: EngineStatus
    reason: str


# it ended by itself; the device or the process did not go on; somebody else has killed it
ExitCause = Literal["crash", "hang", "external"]


class EngineExited(Message):
    """An engine process has exited: what is not answered goes to the next one, after this message."""

    engine_id: int
    num_exits: int  # of this engine, until now
    reason: str
    calls: list[tuple[int, int]]  # on the device at that moment: call ids and numbers of inputs, of any front-end
    is_isolated: bool  # one input, alone on the device because it had been there when another process exited
    cause: ExitCause


class PoisonFound(Message):
    """Inputs have crashed the engine process twice: they are refused for a while. Forwarded to all front-ends."""

    engine_id: int
    digests: list[bytes]
    reason: str


class ReleaseEngine(Call[Done]):
    """Send no more requests to an engine; answered when those in flight are, and the link is closed."""

    engine_id: int


class AllFrontEndsReady(Message):
    """Sent to every front-end once all are ready: `/health/ready` may return 200."""


class Drain(Message):
    """Finish requests in flight, then exit."""


class OtherFrontEndsLoad(Message):
    """Requests in flight at the other front-ends."""

    num_in_flight: int


# from a front-end process to the supervisor


class Listening(Message):
    """The front-end accepts connections."""


class FrontEndReady(Message):
    """The front-end has received EngineReady and can serve requests."""


class LinkLost(Message):
    """The link to the engine process was closed; if that process lives, the front-end needs another one."""

    engine_id: int


class ReplayStats(Message):
    """Requests sent again, those of them with inputs that run alone, and inputs that were refused for good."""

    engine_id: int
    num_replayed: int
    num_quarantined: int
    num_poison: int


class FrontEndStats(Message):
    """HTTP responses since the last report, and requests in flight now."""

    replies: list[tuple[str, str, int, float]]  # handler, method, status, seconds
    num_in_flight: int


class ListedModels(Message):
    rows: list[ModelRow]


class ListModels(Call[ListedModels]):
    """The models of the server."""


class LoadModel(Call[ListedModels]):
    """Load a model of the table or, with `changes`, add it before; answered with its row when it is ready."""

    name: str
    changes: JSONBytes | None


class UnloadModel(Call[ListedModels]):
    """Finish the requests of a model and end its engine processes."""

    name: str


class ReloadModel(Call[ListedModels]):
    """Replace the engine processes of a model."""

    name: str
    changes: JSONBytes


class ChangeAdapters(Call[Done]):
    """Load an adapter at all replicas of the model of an engine, or unload it (`path` None)."""

    engine_id: int
    name: str
    path: str | None
    in_place: bool


class ShutDown(Call[Done]):
    """Stop the server as SIGTERM does."""


AdminCall = ListModels | LoadModel | UnloadModel | ReloadModel | ChangeAdapters | ShutDown
EngineToSupervisor = EngineLoaded | LoadFailed | EngineFailed | Done | MetricsResponse
SupervisorToEngine = EngineInit | SetAdapters | ChangeAdapter | StopEngine | MetricsCall
FrontEndToSupervisor = (
    Listening
    | LoadFailed
    | FrontEndReady
    | LinkLost
    | FrontEndStats
    | ReplayStats
    | PoisonFound
    | MetricsCall
    | AdminCall
    | Done
)
SupervisorToFrontEnd = (
    Init
    | ModelStates
    | EngineState
    | EngineExited
    | ReleaseEngine
    | PoisonFound
    | AllFrontEndsReady
    | Drain
    | OtherFrontEndsLoad
    | MetricsResponse
    | ListedModels
    | Done
)
