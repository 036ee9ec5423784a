"""Flow control of a connection: pauses reading while the app is slow, and writing while the client is."""

from __future__ import annotations

import asyncio


class FlowControl(asyncio.Protocol):
    """Protocol that counts no pause twice, and whose writers can wait until the transport accepts more."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_reading_paused = False
        self.is_writing_paused = False
        self.writable: asyncio.Future[None] | None = None  # done when writing resumes

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

    def resume_writing(self) -> None:
        """Called by the transport when it has sent most of it."""
        self.is_writing_paused = False
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)

    async def wait_writable(self) -> None:
        if self.writable is not None:
            await asyncio.shield(self.writable)  # a cancelled request must not cancel it for another
