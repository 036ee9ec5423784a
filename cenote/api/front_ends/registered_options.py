"""RegisteredOptions: options of requests that the engine process has checked once and knows by a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec

from cenote.api.front_ends.replay import EngineLost
from cenote.api.wire.channel import Channel
from cenote.api.wire.token_messages import OptionsRegistered, RegisterOptions
from cenote.inputs.limits import Limits
from cenote.protocol.params import PoolingParams
from cenote.protocol.prompt_selection import PromptSelection
from cenote.protocol.requests import PoolRequest

MAX_REGISTERED = 4096

OptionsKey = tuple[Any, ...]


class RegisteredOptions:
    """The number and the limits of options that the engine knows, or the error with which it refused them."""

    def __init__(self, options_id: int, future: asyncio.Future[OptionsRegistered]) -> None:
        self.options_id = options_id
        self.future = future

    async def get_limits(self) -> Limits:
        if not self.future.done():
            await asyncio.wait([self.future])
        if (error := self.future.exception()) is not None:
            raise copy(error)  # raising the one that is kept would keep this request with its texts as well
        reply = self.future.result()
        return Limits(reply.max_tokens, reply.limit_name, reply.is_bounded, reply.is_chunked)


class OptionsRegistry:
    """The options that are known at the other end of one link."""

    def __init__(self, channel: Channel[Any], next_call_id: Callable[[], int]) -> None:
        self._channel = channel
        self._next_call_id = next_call_id
        self._registering: dict[int, asyncio.Future[OptionsRegistered]] = {}
        self._registered: dict[OptionsKey, RegisteredOptions] = {}

    def find(self, request: PoolRequest, selection: PromptSelection) -> RegisteredOptions:
        """Return the options of a request; they are registered if no request before had them."""
        adapter = selection.adapter if request.adapter is None else request.adapter
        assert adapter is None or isinstance(adapter, str), "checked by can_render"
        params = request.params
        assert params is None or isinstance(params, PoolingParams), "checked by can_render"
        encoded_params = None if params is None else msgspec.msgpack.encode(params)
        key = (request.task, request.extra_tasks, encoded_params, adapter, request.scheduling)
        if (registered := self._registered.get(key)) is not None:
            return registered
        future: asyncio.Future[OptionsRegistered] = asyncio.get_running_loop().create_future()
        options_id = call_id = self._next_call_id()
        task, extra_tasks, _, _, scheduling = key
        # first, because it raises if a value cannot be encoded: later requests must not wait for an answer
        self._channel.send(RegisterOptions(call_id, options_id, task, extra_tasks, params, adapter, scheduling))
        self._registering[call_id] = future
        self._registered[key] = registered = RegisteredOptions(options_id, future)
        if len(self._registered) > MAX_REGISTERED:
            del self._registered[next(iter(self._registered))]
        return registered

    def forget(self) -> None:
        """Register options again before they are used: adapters have changed."""
        self._registered = {}

    def is_registering(self, call_id: int) -> bool:
        return call_id in self._registering

    def on_registered(self, message: OptionsRegistered) -> None:
        if (future := self._registering.pop(message.call_id, None)) is not None and not future.done():
            future.set_result(message)

    def on_refused(self, call_id: int, error: Exception) -> None:
        """Take the refusal of options: every request with them gets the error."""
        fail(self._registering.pop(call_id), error)

    def lose_all(self) -> None:
        """The engine process has exited, or the link is replaced."""
        for future in self._registering.values():
            fail(future, EngineLost())


def fail(future: asyncio.Future[OptionsRegistered], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark it as retrieved: perhaps nobody waits for it any more
