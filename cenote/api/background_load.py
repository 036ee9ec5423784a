"""Loads the model beside the event loop, which answers from the first second."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from cenote.protocol.engine import Engine

EngineLoader = Callable[[], Engine]

# that a thread keeps the interpreter while others wait: the model's thread asks for it anew after every operation, and
# what reads images would keep it for long
SWITCH_INTERVAL_S = 0.0005


def load_in_thread(
    load_engine: EngineLoader, on_loaded: Callable[[Engine], None], on_failed: Callable[[BaseException], None]
) -> None:
    """In a thread of its own, for importing torch alone takes seconds; what came of it is told in the event loop."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            engine = load_engine()
        except BaseException as error:  # whatever it is, nobody else would hear of it
            tell(on_failed, error)
        else:
            # what is there now stays for good: looking through it again and again would only cost pauses
            gc.collect()
            gc.freeze()
            if engine.model_info.supports_images:
                sys.setswitchinterval(SWITCH_INTERVAL_S)
            tell(on_loaded, engine)

    def tell(whom: Callable[..., None], what: object) -> None:
        with suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(whom, what)

    threading.Thread(target=run, name="cenote-load", daemon=True).start()
