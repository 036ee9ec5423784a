"""Receiver: bounds the messages that calls receive at the same time, before admission has counted them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cenote.errors import Overloaded

# Of a message: the default of gRPC and of Text Embeddings Inference. Its size is known when it has been received.
MAX_MESSAGE_BYTES = 4 * 1024**2
MIN_PLACES = 16
MAX_WAIT_S = 1.0  # for a place, until the call that has waited longest for its message makes room


class Receiver:
    """Has a place for every message that may be received while memory for others is left."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of messages that are not counted yet."""
        self.num_places = max(MIN_PLACES, max_bytes // MAX_MESSAGE_BYTES)
        self._places = asyncio.Semaphore(self.num_places)
        self._receiving: dict[asyncio.Timeout, None] = {}  # in the order in which they began

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it while a message is received and counted; raise if another call needs it."""
        timer = None
        if self._places.locked():
            timer = asyncio.get_running_loop().call_later(MAX_WAIT_S, self._end_longest)
        try:
            await self._places.acquire()
        finally:
            if timer is not None:
                timer.cancel()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._receiving[scope] = None
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise Overloaded(
                f"{self.num_places} calls are waiting for messages, and others too; this one has waited longest. Send "
                "the message with the call, and close streams that are not in use"
            ) from None
        finally:
            self._receiving.pop(scope, None)
            self._places.release()

    def _end_longest(self) -> None:
        if self._receiving:
            scope = next(iter(self._receiving))
            del self._receiving[scope]
            scope.reschedule(0.0)
