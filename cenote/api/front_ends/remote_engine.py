"""Engine proxy of a front-end: every call becomes a message to the engine process, over a link that may be replaced."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from cenote.api.front_ends.availability import Availability
from cenote.api.front_ends.front_end_engine import FrontEndEngine
from cenote.api.front_ends.quarantine import Quarantine
from cenote.api.front_ends.remote_core import RemoteCalls, RemoteCore
from cenote.api.front_ends.remote_pending import EngineLost, RemotePending
from cenote.api.front_ends.text_model import TextModelCache
from cenote.api.wire.channel import Channel, ReplyT
from cenote.api.wire.control_messages import EngineExited, ReplayStats
from cenote.api.wire.link_messages import EngineMessage
from cenote.api.wire.messages import (
    ArrayBytes,
    Call,
    Done,
    EngineDown,
    EngineReady,
    MetricsCall,
    ModelInfoUpdate,
    ProcessCall,
    from_json,
    to_json,
)
from cenote.api.wire.token_messages import RendererInfo, TokenErrors, TokenResults
from cenote.errors import BadRequest, EngineStopped, Overloaded, PoolingError, make_exited_error
from cenote.protocol.input_types import compute_inputs_size
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import PluginRequest, PoolRequest
from cenote.protocol.results import IOProcessorResult, PoolResult
from cenote.utils.metrics import MetricFamily

# by then the supervisor has noticed if the link was closed because the engine process has exited
RECONNECT_DELAY_S = 0.2
# before a call is repeated that a new engine process has refused because all others come at the same time
OVERLOADED_DELAY_S = 0.1

# unique among the front-ends that run: the supervisor tells all of them the calls that were on the device; and among
# the engines of this one, since a call may be sent to another replica
call_ids = itertools.count((os.getpid() << 32) + 1)

logger = logging.getLogger("cenote")


# called with the name of an adapter, its path (None: unload it) and whether it may have been loaded before
AdapterChange = Callable[[str, str | None, bool], Awaitable[None]]


class RemoteEngine(FrontEndEngine):
    """Implement Engine over a link to an engine process; `connect` is called again with the link to a new process."""

    def __init__(
        self,
        on_ready: Callable[[], None] = lambda: None,
        on_link_lost: Callable[[], None] = lambda: None,
        engine_id: int = 0,
    ) -> None:
        self.on_ready = on_ready  # called when the engine process at the other end of a link has loaded the model
        self.on_link_lost = on_link_lost  # called some time after a link was closed, whatever the reason
        self.on_replay: Callable[[ReplayStats], None] = lambda stats: None  # called when requests are sent again
        self.change_adapter: AdapterChange | None = None  # at all replicas of the model, which the supervisor does
        self.engine_id = engine_id
        self._model_info: ModelInfo | None = None  # set before `on_ready` is called, and kept while the engine restarts
        self._is_closed = False
        self.availability = Availability()
        self.quarantine = Quarantine()
        self._channel: Channel[EngineMessage] | None = None
        self.core: RemoteCore | None = None  # None: there is no link
        self.text_models = TextModelCache()
        self._connecting: asyncio.Task[None] | None = None
        self.calls = RemoteCalls(lambda: next(call_ids), self.quarantine)

    def share(self, quarantine: Quarantine, text_models: TextModelCache) -> None:
        """Use those of all replicas of a model."""
        self.quarantine = self.calls.quarantine = quarantine
        self.text_models = text_models

    @property
    def model_info(self) -> ModelInfo:
        assert self._model_info is not None, "requests are sent after the model has been loaded"
        return self._model_info

    @property
    def has_model_info(self) -> bool:
        return self._model_info is not None

    def set_default_model_info(self, model_info: ModelInfo) -> None:
        """Take what the supervisor knows about the model, until the engine process tells it."""
        self._model_info = self._model_info or model_info

    async def connect(self, sock: socket.socket) -> None:
        """Use a new link to an engine process; it is ready when that process says so."""
        if (previous := self._channel) is not None:
            self._on_closed(previous)  # its process has exited, which its socket may report later than this link
            previous.close()
        channel: Channel[EngineMessage] = Channel(
            EngineMessage,
            lambda message, array_bytes: self._on_message(channel, message, array_bytes),
            lambda: self._on_closed(channel),
            lambda error: channel.abort(),  # results that are lost: their calls are sent again, none waits for ever
            lambda call, _: self._on_call(channel, call),
            EngineLost,
        )
        self._channel = channel
        try:
            await channel.connect(sock)
        except OSError as error:  # no descriptor is left: the supervisor sends another link when it learns of this
            logger.warning("the link to engine process %d cannot be used: %s", self.engine_id, error.strerror)
            sock.close()
            self._on_closed(channel)

    def start_connect(self, sock: socket.socket) -> None:
        """Like `connect`, in a task."""
        self._connecting = asyncio.get_running_loop().create_task(self.connect(sock))

    def on_engine_exited(self, exited: EngineExited) -> None:
        """Take the report of the supervisor on what was on the device; afterwards requests are sent again."""
        numbers_by_call: dict[int, list[int]] = {}
        for call_id, number in exited.calls:
            numbers_by_call.setdefault(call_id, []).append(number)
        suspects, poison = set[RemotePending](), list[bytes]()
        for call_id, numbers in numbers_by_call.items():
            call = self.calls.pending.get(call_id)
            if call is not None:
                suspects.add(call.owner)
                self.quarantine.remove_suspects(call.owner.suspect_digests)
                poison += call.on_exit(numbers, exited)
                self.quarantine.add_suspects(call.owner.suspect_digests)
        calls = dict.fromkeys(call.owner for call in self.calls.pending.values())  # in the order of arrival
        if not exited.calls and exited.cause != "external":
            for call in calls:
                call.on_unexplained_crash(exited)
        if poison:
            self.quarantine.report_poison(poison, exited.reason)
        if calls:
            logger.warning(
                "the engine process has exited (%s): %d requests are sent again, %d of them with inputs that run alone "
                "because they were on the device; %d inputs are refused",
                exited.reason,
                sum(not call.is_decided for call in calls),
                sum(not call.is_decided for call in suspects),
                len(poison),
            )
        self.on_replay(ReplayStats(self.engine_id, 0, len(suspects), len(poison)))
        self.availability.on_exit(exited.num_exits)

    def close(self) -> None:
        """End the link; the replicas of a model, which share its renderer, are closed together."""
        self._is_closed = True
        self.text_models.close()
        if self._channel is not None:
            self._channel.close()

    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        if not self.availability.is_available:
            num_chars = compute_inputs_size(request.inputs) if request.num_chars is None else request.num_chars
            await self.availability.wait(request.deadline_at, None, num_chars)
        return await self._pool_prepared(await self._prepare(request))

    async def pool_part(self, request: PoolRequest, first: int | None = None) -> list[PoolResult | PoolingError]:
        """Send the inputs until all have a result."""
        pending = RemotePending(request, request.num_chars)
        try:
            while True:
                if not self.availability.is_available:
                    num_chars = 0 if pending.was_lost else pending.num_chars
                    await self.availability.wait(request.deadline_at, pending, num_chars)
                if (results := await self.try_pool(pending)) is not None:
                    return results
        finally:
            self.forget_pool(pending)
            if pending.suspect_digests:
                self.quarantine.remove_suspects(pending.suspect_digests)

    async def try_pool(self, pending: RemotePending) -> list[Any] | None:
        """Send the inputs without a result; return None if the engine process is lost, or has no capacity.

        `forget_pool` must follow when it is not sent to this engine again.
        """
        pending.begin_attempt(self.engine_id, self.availability.engine_number)
        if pending.is_decided:  # while it waited for an engine process
            self.forget_pool(pending)  # its results are those of no call
            return pending.take_results()
        assert self.core is not None, "RendererInfo comes before EngineReady"
        try:
            return await self.core.pool(pending, self.model_info)
        except EngineLost:
            pending.mark_lost()
        except Overloaded as error:
            await self._wait_for_capacity(pending, error)
        return None

    def forget_pool(self, pending: RemotePending) -> None:
        for call_id in pending.call_ids:
            self.calls.pending.pop(call_id, None)

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        await self._change_adapter(name, path, in_place)

    async def unload_adapter(self, name: str) -> None:
        await self._change_adapter(name, None, False)

    async def _change_adapter(self, name: str, path: str | None, in_place: bool) -> None:
        assert self.change_adapter is not None, "engines without a supervisor change their adapters themselves"
        await self.availability.wait(0.0, None, 0)
        await self.change_adapter(name, path, in_place)

    async def collect_metrics(self) -> list[MetricFamily]:
        if self.dead_error is not None:
            raise self.dead_error
        return (await self._call(MetricsCall())).families

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        """Run the plugin; not again if its process exits: what it does besides calling the model is not known."""
        if not self.availability.is_available:
            await self.availability.wait(request.deadline_at, None, 0)
        sent_at, data = time.monotonic(), to_json(request.data)
        reply = await self._call(
            ProcessCall(data, request.request_id, request.tokenization, request.scheduling, request.deadline_at)
        )
        timing, now = request.timing, time.monotonic()
        timing.add_parallel(reply.timing)
        timing.answered_at, timing.wire_s = now, max(0.0, now - sent_at - reply.seconds)
        return IOProcessorResult(from_json(reply.data), reply.num_inputs, reply.num_tokens, reply.num_truncated)

    async def _call(self, call: Call[ReplyT]) -> ReplyT:
        if (channel := self._channel) is None:
            raise make_exited_error()
        await channel.wait_writable()
        try:
            return await channel.call(call)
        except EngineLost:
            raise make_exited_error() from None
        except EngineStopped as error:
            self.availability.on_down(str(error))
            raise make_exited_error() from None
        except (OverflowError, UnicodeEncodeError) as error:
            raise BadRequest(f"the request cannot be encoded for the engine process: {error}") from error

    def _on_message(self, channel: Channel[EngineMessage], message: EngineMessage, array_bytes: ArrayBytes) -> None:
        if channel is not self._channel:
            return  # of an engine process that has been replaced
        if isinstance(message, EngineReady):
            self._model_info = from_json(message.model_info, type=ModelInfo)
            self.availability.on_ready(message.engine_number)
            self.on_ready()
        elif isinstance(message, EngineDown):
            self.availability.on_down(message.reason)
        elif isinstance(message, RendererInfo):
            texts = self.text_models.get(message)
            self.core = RemoteCore(texts, channel, self.calls, self.availability.on_down)
        else:
            assert isinstance(message, TokenResults | TokenErrors), "all others are replies"
            assert self.core is not None, "results come after RendererInfo"
            if isinstance(message, TokenResults):
                self.core.on_results(message, array_bytes)
            else:
                self.core.on_errors(message)

    def _on_call(self, channel: Channel[EngineMessage], update: ModelInfoUpdate) -> Done:
        if channel is self._channel:
            self._model_info = from_json(update.model_info, type=ModelInfo)
            if self.core is not None:
                self.core.options.forget()
        return Done()

    def _on_closed(self, channel: Channel[EngineMessage]) -> None:
        """End the attempts of all calls: the engine process has exited, or the link is replaced."""
        if channel is not self._channel:
            return
        self._channel = None
        calls = {call.owner for call in self.calls.pending.values()}
        if self.core is not None:
            self.core.lose_all()
            self.core.close()
            self.core = None
        self.availability.on_link_lost()
        if self._is_closed:
            self.availability.on_closed()
        else:
            self.on_replay(ReplayStats(self.engine_id, len(calls), 0, 0))
            asyncio.get_running_loop().call_later(RECONNECT_DELAY_S, self._report_lost_link)

    def _report_lost_link(self) -> None:
        if self._channel is None and not self._is_closed:
            self.on_link_lost()

    async def _wait_for_capacity(self, call: RemotePending, error: Overloaded) -> None:
        """Wait a moment before a call is repeated; raise the error if the engine had not admitted it before."""
        now = time.monotonic()
        call.retry_until = call.retry_until or now + self.availability.replay_timeout_s
        if not call.was_lost or now > call.retry_until:
            raise error
        await asyncio.sleep(OVERLOADED_DELAY_S * (0.5 + random.random()))
