"""Serve one engine to the front-ends over the links that the supervisor passes, and report to the supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import msgspec

from cenote.api import log_config
from cenote.api.background_load import load_in_thread
from cenote.api.engine_process.plugin_calls import run_plugin
from cenote.api.engine_process.token_batcher import TokenBatcher, TokenLink
from cenote.api.wire.channel import Channel, Reply
from cenote.api.wire.codec_errors import serialize_error
from cenote.api.wire.control_messages import (
    ChangeAdapter,
    EngineFailed,
    EngineInit,
    EngineLoaded,
    LoadFailed,
    SetAdapters,
    SupervisorToEngine,
)
from cenote.api.wire.device_table import DeviceRecorder, DeviceTable
from cenote.api.wire.heartbeat import BusyStage, HeartbeatWriter, LoopClock, Speed
from cenote.api.wire.link_messages import FrontEndMessage
from cenote.api.wire.link_sockets import LinkReceiver
from cenote.api.wire.messages import (
    ArrayBytes,
    Cancel,
    Done,
    EngineDown,
    EngineReady,
    MetricsCall,
    MetricsResponse,
    ModelInfoUpdate,
    ProcessCall,
    to_json,
)
from cenote.api.wire.token_messages import RefusedRequests, RegisterOptions, RendererInfo, RouteInfo, TokenBatch
from cenote.protocol.engine import Engine
from cenote.protocol.params import Role

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine

logger = logging.getLogger("cenote")

POLL_INTERVAL_S = 0.1
# seconds to send error responses to the front-ends before the process exits
FINAL_FLUSH_S = 0.3
UPDATE_TIMEOUT_S = 2.0  # a front-end that hangs must not block the others
EXIT_STOPPED, EXIT_LOAD_FAILED, EXIT_ENGINE_FAILED, EXIT_NO_SUPERVISOR = 0, 78, 70, 71

LoadEngine = Callable[[EngineInit], Engine]


class EngineServer:
    def __init__(self, load_engine: LoadEngine, device_table: DeviceTable) -> None:
        self.load_engine = load_engine
        self.device_table = device_table
        self.engine_number = 0
        self._first_adapters: Mapping[str, str] = {}  # that the process has tried to load with the model
        self.control: Channel[SupervisorToEngine] = Channel(
            SupervisorToEngine,
            self._on_control_message,
            self._on_supervisor_exited,
            on_call=lambda call, _: self._answer_supervisor(call),
        )
        self.links: set[FrontEndLink] = set()
        self.engine: Engine | None = None
        self.renderer_info: RendererInfo | None = None  # None: the engine has no renderer
        self.token_batcher: TokenBatcher | None = None
        self.exit_status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._clock = LoopClock()
        self._is_serving = asyncio.Event()  # requests of front-ends, after SetAdapters
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, control: socket.socket, links: socket.socket, heartbeat_fd: int) -> int:
        """Load the model, serve until the supervisor says stop, and return the exit status."""
        HeartbeatWriter(heartbeat_fd, self.find_busy_stage, self.measure_speed).thread.start()
        await self.control.connect(control)
        receiver = LinkReceiver(links, self._on_link)
        watcher = asyncio.get_running_loop().create_task(self._watch())
        status = await self.exit_status
        watcher.cancel()
        receiver.close()
        return status

    def find_busy_stage(self) -> BusyStage:
        """Return the stage that has been busy for longest with one piece of work; called by the heartbeat thread."""
        busy: BusyStage = getattr(self.engine, "find_busy_stage", lambda: None)()
        lag = self._clock.find_busy_stage()
        return lag if lag is not None and (busy is None or lag[1] < busy[1]) else busy

    def measure_speed(self) -> Speed:
        """Return what admission needs to know about the engine; called by the heartbeat thread."""
        speed: Speed = getattr(self.engine, "measure_speed", lambda: (0.0, 0.0))()
        return speed

    async def broadcast_model_info(self) -> None:
        """Send the current model info to every front-end and wait: the next request may reach any of them."""
        if self.engine is not None:
            model_info = self.engine.model_info
            message = ModelInfoUpdate(to_json(model_info))
            await asyncio.gather(*(link.update_model_info(message) for link in self.links))

    def _on_control_message(self, message: SupervisorToEngine, array_bytes: ArrayBytes) -> None:
        if isinstance(message, EngineInit):
            log_config.configure_logging(message.settings)
            self.engine_number, self._first_adapters = message.engine_number, message.adapters
            use_cpus(message.cpus, message.num_threads)  # before torch starts threads
            load_in_thread(lambda: self.load_engine(message), self._on_loaded, self._on_load_failed)
        elif isinstance(message, SetAdapters):
            task = asyncio.get_running_loop().create_task(self._start_serving(message.adapters, message.changed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._exit(EXIT_STOPPED)

    async def _answer_supervisor(self, call: ChangeAdapter | MetricsCall) -> Done | MetricsResponse:
        if isinstance(call, MetricsCall):
            return MetricsResponse([]) if self.engine is None else await collect_metrics(self.engine)
        await self._change_adapter(call)
        return Done()

    async def _start_serving(self, adapters: Mapping[str, str], changed: Sequence[str]) -> None:
        """Load and unload what requests have changed while this process was being started, then serve requests."""
        assert self.engine is not None, "sent after EngineLoaded"
        loaded = self.engine.model_info.external_adapters
        for name in {**loaded, **adapters}:
            try:
                path = adapters.get(name)
                if path is None:
                    await self.engine.unload_adapter(name)
                elif name in changed or loaded.get(name, self._first_adapters.get(name)) != path:
                    await self.engine.load_adapter(name, path, in_place=name in loaded)
            except Exception as error:  # the base model and the other adapters still serve
                logger.error("the adapter %s could not be changed while the engine was started: %s", name, error)
        self._is_serving.set()
        if self.engine.dead_error is None:
            for link in self.links:
                link.set_engine(self.engine, self)

    async def _change_adapter(self, change: ChangeAdapter) -> None:
        await self._is_serving.wait()
        assert self.engine is not None, "sent after EngineLoaded"
        if change.path is None:
            await self.engine.unload_adapter(change.name)
        else:
            await self.engine.load_adapter(change.name, change.path, in_place=change.in_place)
        await self.broadcast_model_info()

    def _on_supervisor_exited(self) -> None:
        os._exit(EXIT_NO_SUPERVISOR)  # nobody is left to serve, or to tell

    def _on_link(self, sock: socket.socket, engine_id: int) -> None:
        link = FrontEndLink(self.links.discard)
        self.links.add(link)
        asyncio.get_running_loop().create_task(self._connect(link, sock))

    async def _connect(self, link: FrontEndLink, sock: socket.socket) -> None:
        try:
            await link.channel.connect(sock)
        except OSError as error:  # no descriptor is left: the front-end asks for another link when this one is closed
            logger.warning("a front-end cannot be connected: %s", error.strerror)
            sock.close()
            self.links.discard(link)
            return
        if self.engine is not None and self._is_serving.is_set() and self.engine.dead_error is None:
            link.set_engine(self.engine, self)

    def _on_loaded(self, engine: Engine) -> None:
        self.engine = engine
        record_batches(engine, self.device_table)
        if hasattr(engine, "on_stopped"):
            loop = asyncio.get_running_loop()
            engine.on_stopped = lambda: loop.call_soon_threadsafe(self._on_engine_stopped)
        self.renderer_info = make_renderer_info(engine)
        if self.renderer_info is not None:
            self.token_batcher = TokenBatcher(cast("PoolingEngine", engine))
        if hasattr(engine, "metrics"):
            engine.metrics.queues["wire"] = lambda: sum(link.channel.num_unsent_bytes for link in self.links)
        model_info = engine.model_info
        adapters = dict(model_info.external_adapters)
        has_torch = "torch" in sys.modules
        self.control.send(EngineLoaded(to_json(model_info), adapters, measure_device_bytes(engine), has_torch))

    def _on_engine_stopped(self) -> None:
        """Tell the front-ends at once, after the errors of their requests."""
        error = None if self.engine is None else self.engine.dead_error
        for link in self.links:
            link.channel.send(EngineDown(str(error)))

    def _on_load_failed(self, error: BaseException) -> None:
        if serialize_error(error).class_name == "":
            logger.error("loading the model failed", exc_info=error)
        self.control.send(LoadFailed(serialize_error(error)))
        self._exit(EXIT_LOAD_FAILED)

    async def _watch(self) -> None:
        """Exit when the engine has died: it cannot recover in this process, and the supervisor starts another."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self._clock.turn()
            if self.engine is not None and (error := self.engine.dead_error) is not None:
                self.control.send(EngineFailed(serialize_error(error)))
                await asyncio.sleep(FINAL_FLUSH_S)
                self._exit(EXIT_ENGINE_FAILED)
                return

    def _exit(self, status: int) -> None:
        if not self.exit_status.done():
            self.exit_status.set_result(status)


def measure_device_bytes(engine: Engine) -> int:
    """Return the memory of the GPU that this process uses; 0 on a CPU."""
    if not engine.model_info.device.startswith("cuda"):
        return 0
    import torch  # loaded already

    return torch.cuda.memory_reserved(engine.model_info.device)


def use_cpus(cpus: Sequence[int], num_threads: int) -> None:
    """Run this thread and those that it starts on these CPUs, with so many threads of torch, or fewer if set so."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    if num_threads:
        variable = os.environ.get("OMP_NUM_THREADS", "")
        limit = int(variable) if variable.isdigit() else num_threads
        os.environ["OMP_NUM_THREADS"] = str(min(num_threads, limit))
        if (torch := sys.modules.get("torch")) is not None:  # imported by the launcher, before the variable was set
            torch.set_num_threads(min(num_threads, limit))


def record_batches(engine: Engine, table: DeviceTable) -> None:
    """Record the batches of an engine, and of the engines of its routes, in a table that outlives this process."""
    if hasattr(engine, "core"):
        pooling_engine = cast("PoolingEngine", engine)
        for number, part in enumerate(dict.fromkeys([pooling_engine, *pooling_engine.routes.values()])):
            DeviceRecorder(table, number).attach(part.core.loop)


def make_renderer_info(engine: Engine) -> RendererInfo | None:
    """Return what front-ends need to tokenize like the engine, and to compute its tasks; None without a renderer."""
    if not hasattr(engine, "renderer_settings"):
        return None
    pooling_engine = cast("PoolingEngine", engine)
    roles: dict[PoolingEngine, list[Role]] = {pooling_engine: []}
    for role, route in pooling_engine.routes.items():
        roles.setdefault(route, []).append(role)
    routes = [make_route_info(route, route_roles) for route, route_roles in roles.items()]
    return RendererInfo(routes, to_json(pooling_engine.task_settings), pooling_engine.config.step_timeout_s)


def make_route_info(engine: PoolingEngine, roles: list[Role]) -> RouteInfo:
    model = engine.model
    try:
        tokenizer = engine.tokenizer.raw.to_str()
    except Exception as error:  # a part written in Python, such as a word segmenter for Japanese
        logger.info("the tokenizer cannot be sent to front-ends, they load it from its files: %s", error)
        tokenizer = ""
    return RouteInfo(
        roles,
        tokenizer.encode(),
        msgspec.json.encode(model.tokenizer.checkpoint, enc_hook=str),
        model.description.sentence_transformers.text_suffix,
        to_json(engine.tokenizer_settings),
        to_json(engine.renderer_settings),
    )


async def collect_metrics(engine: Engine) -> MetricsResponse:
    return MetricsResponse(await engine.collect_metrics())


class FrontEndLink:
    """The connection to one front-end."""

    def __init__(self, on_closed: Callable[[FrontEndLink], None]) -> None:
        self.channel: Channel[FrontEndMessage] = Channel(
            FrontEndMessage, self._on_message, self._on_disconnect, self._on_unhandled, self._on_call
        )
        self._on_closed = on_closed
        self.engine: Engine | None = None
        self.token_link: TokenLink | None = None  # None: the engine has no renderer

    def set_engine(self, engine: Engine, server: EngineServer) -> None:
        if self.engine is not None or not self.channel.is_open:
            return
        self.engine = engine
        if server.renderer_info is not None and server.token_batcher is not None:
            self.token_link = TokenLink(server.token_batcher, self.channel)
            self.channel.send(server.renderer_info)
        self.channel.send(EngineReady(to_json(engine.model_info), server.engine_number))

    async def update_model_info(self, message: ModelInfoUpdate) -> None:
        if self.engine is None:
            return  # its EngineReady will have the current model info
        with suppress(Exception):  # it hangs or exits, or does not understand the message
            await asyncio.wait_for(self.channel.call(message), UPDATE_TIMEOUT_S)

    def _on_message(self, message: FrontEndMessage, array_bytes: ArrayBytes) -> None:
        assert self.token_link is not None, "sent only after RendererInfo"
        if isinstance(message, TokenBatch):
            self.token_link.on_batch(message, array_bytes)
        elif isinstance(message, RefusedRequests):
            self.token_link.on_refused_requests(message)
        else:
            assert isinstance(message, Cancel), "all others are calls and replies"
            self.token_link.cancel(message.call_id)

    def _on_call(
        self, call: RegisterOptions | ProcessCall | MetricsCall, array_bytes: ArrayBytes
    ) -> Reply | Awaitable[Reply]:
        assert self.engine is not None, "front-ends send requests only after EngineReady"
        if isinstance(call, RegisterOptions):
            assert self.token_link is not None, "sent only after RendererInfo"
            return self.token_link.on_register(call)
        return run_plugin(self.engine, call) if isinstance(call, ProcessCall) else collect_metrics(self.engine)

    def _on_unhandled(self, error: Exception) -> None:
        self.channel.abort()  # token batches that are not known: all of the link fail, none waits for ever

    def _on_disconnect(self) -> None:
        self._on_closed(self)
        if self.token_link is not None:
            self.token_link.cancel_all()
