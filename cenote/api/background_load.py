"""Load the model in a background thread while the event loop serves requests."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cenote.protocol.engine import Engine
from cenote.utils.garbage_collection import no_collections

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine

EngineLoader = Callable[[], Engine]

# Interpreter switch interval (seconds): the model thread reacquires the GIL after every operation, and image
# preprocessing threads would otherwise hold it for the default 5 ms each time.
SWITCH_INTERVAL_S = 0.0005


def load_in_thread(
    load_engine: EngineLoader, on_loaded: Callable[[Engine], None], on_failed: Callable[[BaseException], None]
) -> None:
    """Load the engine in a thread, as importing torch alone takes seconds; run a callback in the event loop."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            engine = load_engine()
        except BaseException as error:  # SystemExit too: in a thread it would be lost
            notify(on_failed, error)
        else:
            # objects alive after loading stay alive: exclude them from garbage collection to avoid pauses
            gc.collect()
            gc.freeze()
            if engine.model_info.supports_images:
                sys.setswitchinterval(SWITCH_INTERVAL_S)
            notify(on_loaded, engine)

    def notify(callback: Callable[..., None], argument: object) -> None:
        with suppress(RuntimeError):  # the event loop has been closed in the meantime
            loop.call_soon_threadsafe(callback, argument)

    threading.Thread(target=run, name="cenote-load", daemon=True).start()


def import_engine() -> type[PoolingEngine]:
    """Import all that an engine needs; takes seconds."""
    # torch's threads must not spin while they wait for each other: HTTP threads and processes need the cores;
    # has to be set before torch is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with no_collections():
        from cenote.engine.engine import PoolingEngine
    return PoolingEngine
