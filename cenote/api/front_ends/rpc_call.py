"""RpcCall: a call that the engine process answers as a whole, over all processes that it is sent to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from cenote.api.front_ends.quarantine import digest_call
from cenote.api.front_ends.replay import ReplayableCall, make_poison_error
from cenote.api.wire.control_messages import EngineExited
from cenote.api.wire.messages import ArrayBytes, RpcRequest, RpcResponse
from cenote.protocol.input_types import Input, compute_input_size


class RpcCall(ReplayableCall):
    def __init__(
        self,
        encode: Callable[[int, Sequence[int]], RpcRequest],
        *,
        can_replay: bool = True,
        has_indices: bool = False,
        get_inputs: Callable[[], Iterable[Input]] = tuple,
        adapter: object = None,
    ) -> None:
        """`encode` makes the message from its id and the numbers of inputs that run alone.

        `has_indices`: numbers of inputs on the device are indices of inputs of the request.
        """
        self.encode = encode
        self.can_replay = can_replay  # the result depends on nothing but the request
        self.call_id = 0  # of the last attempt
        self.future: asyncio.Future[tuple[RpcResponse, ArrayBytes]] = asyncio.get_running_loop().create_future()
        self.get_inputs = get_inputs
        self.adapter = adapter  # of the request
        self._has_indices = has_indices

    @property
    def owner(self) -> RpcCall:
        return self

    def count_chars(self) -> int:
        """Return the size of its inputs, in characters or bytes."""
        return sum(map(compute_input_size, self.get_inputs()))

    def begin(self, call_id: int) -> RpcRequest:
        """Start an attempt; return the message."""
        self.call_id = call_id
        if self.future.done():
            self.future = asyncio.get_running_loop().create_future()
        return self.encode(call_id, sorted(self.suspects))

    def on_exit(self, numbers: Sequence[int], exited: EngineExited) -> list[bytes]:
        """Take what was on the device when the engine process exited; return its digest if it is to blame."""
        if self.future.cancelled() or (self.future.done() and self.future.exception() is None):
            return []  # answered, or the client has disconnected
        poison = self.find_poison(numbers, exited)
        if not poison:
            return []
        self.set_error(make_poison_error(poison[0] if self._has_indices else None, exited.reason))
        return [self.make_digest()]

    def make_digest(self) -> bytes:
        return digest_call(self.encode(0, ()))
