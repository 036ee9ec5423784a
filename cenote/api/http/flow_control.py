"""Flow control of a connection: pauses reading while the app is slow, and writing while the client is."""

from __future__ import annotations

import asyncio

# a client that reads a response more slowly than this is disconnected: the response would stay in memory
WRITE_RATE_WINDOW_S = 10.0
MIN_WRITE_RATE = 32 * 1024  # bytes per second, averaged over each window


class FlowControl(asyncio.Protocol):
    """Protocol that counts no pause twice, and whose writers can wait until the transport accepts more."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_reading_paused = False
        self.is_writing_paused = False
        self.writable: asyncio.Future[None] | None = None  # done when writing resumes
        self.write_timer: asyncio.TimerHandle | None = None  # while writing is paused

    def pause_reading(self) -> None:
        if not self.is_reading_paused:
            self.is_reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_reading_paused:
            self.is_reading_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Called by the transport when it has too much to send."""
        self.is_writing_paused = True
        self.writable = self.loop.create_future()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Called by the transport when it has sent most of it."""
        self.is_writing_paused = False
        if self.write_timer is not None:
            self.write_timer.cancel()
            self.write_timer = None
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)

    async def wait_writable(self) -> None:
        if self.writable is not None:
            await asyncio.shield(self.writable)  # a cancelled request must not cancel it for another

    def _watch_reader(self) -> None:
        """Check after a while how much of what waits the client has read."""
        size = self.transport.get_write_buffer_size()
        self.write_timer = self.loop.call_later(WRITE_RATE_WINDOW_S, self._check_reader, size)

    def _check_reader(self, previous_size: int) -> None:
        # nothing is added while writing is paused, so that the difference is what was sent
        if previous_size - self.transport.get_write_buffer_size() < MIN_WRITE_RATE * WRITE_RATE_WINDOW_S:
            self.transport.abort()
        else:
            self._watch_reader()
