"""An event loop without waiting and without files: its time jumps to the next timer."""

from __future__ import annotations

import asyncio
from typing import Any

# of a function that would run in a thread: longer than a turn of the event loop, and first come, first served
THREAD_S = 0.0005


class VirtualLoop(asyncio.BaseEventLoop):
    """Callbacks run in the order of asyncio; whatever is ready runs before the time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._now = 1000.0

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Called as that of a selector: nothing ever becomes ready by itself."""
        assert timeout is not None, "the simulation ends at a time, so that there is always a timer"
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None: ...  # type: ignore[override]

    def remove_reader(self, fd: Any) -> bool:
        return False

    def remove_writer(self, fd: Any) -> bool:
        return False

    async def create_unix_connection(self, protocol_factory: Any, *args: Any, sock: Any = None, **options: Any) -> Any:
        """Attach a protocol to a simulated connection, in the next turn as asyncio does."""
        protocol = protocol_factory()
        await asyncio.sleep(0)
        sock.attach(protocol)
        return sock, protocol

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a function in the event loop, a moment later."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(THREAD_S, run)
        return future
