"""RegisteredOptions: options of requests that the engine process has checked once and knows by a number."""

from __future__ import annotations

import asyncio
import itertools
from copy import copy
from typing import Any

import msgspec

from cenote.api.wire.channel import Channel
from cenote.api.wire.token_messages import OptionsRegistered, RegisterOptions
from cenote.inputs.limits import Limits
from cenote.protocol.params import PoolingParams, Role
from cenote.protocol.prompt_selection import PromptSelection
from cenote.protocol.requests import PoolRequest
from cenote.utils.lazy_property import lazy_property

MAX_REGISTERED = 4096

OptionsKey = tuple[Any, ...]


class RegisteredOptions:
    """The number and the limits of options that the engine knows, or the error with which it refused them."""

    def __init__(self, options_id: int, future: asyncio.Future[Any]) -> None:
        self.options_id = options_id
        self.future = future

    async def get_reply(self) -> OptionsRegistered:
        if not self.future.done():
            await asyncio.wait([self.future])
        if (error := self.future.exception()) is not None:
            raise copy(error)  # raising the one that is kept would keep this request with its texts as well
        reply: OptionsRegistered
        reply, _ = self.future.result()
        return reply

    @lazy_property
    def limits(self) -> Limits:
        """The limits in the reply, which has come."""
        reply, _ = self.future.result()
        is_chunked = reply.chunk_tokens > 0
        return Limits(reply.max_tokens, reply.limit_name, reply.is_bounded, is_chunked, reply.max_padded_tokens)


class OptionsRegistry:
    """The options that are known at the other end of one link."""

    def __init__(self, channel: Channel[Any]) -> None:
        self._channel = channel
        self._options_ids = itertools.count(1)
        self.registered: dict[OptionsKey, RegisteredOptions] = {}

    def find(self, request: PoolRequest, selection: PromptSelection, role: Role | None) -> RegisteredOptions:
        """Return the options of a request; they are registered if no request before had them.

        `role`: of its texts, if other modules encode those of other roles.
        """
        adapter = selection.adapter if request.adapter is None else request.adapter
        assert adapter is None or isinstance(adapter, str), "no route has one for each input"
        params = request.params
        assert params is None or isinstance(params, PoolingParams), "no route has one for each input"
        encoded_params = None if params is None else msgspec.msgpack.encode(params)
        has_operands = request.operands is not None
        key = (request.task, request.extra_tasks, encoded_params, adapter, request.scheduling, has_operands, role)
        if (registered := self.registered.get(key)) is not None:
            return registered
        options_id = next(self._options_ids)
        task, extra_tasks, scheduling = request.task, request.extra_tasks, request.scheduling
        # raises if a value cannot be encoded: then nothing is registered
        future = self._channel.start_call(
            RegisterOptions(options_id, task, extra_tasks, params, adapter, scheduling, has_operands, role)
        )
        self.registered[key] = registered = RegisteredOptions(options_id, future)
        if len(self.registered) > MAX_REGISTERED:
            del self.registered[next(iter(self.registered))]
        return registered

    def forget(self) -> None:
        """Register options again before they are used: adapters have changed."""
        self.registered = {}
