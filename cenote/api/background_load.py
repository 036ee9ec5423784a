"""Loads the model beside the event loop, which answers from the first second."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from cenote.protocol.requests import Engine

Load = Callable[[], Engine]

# that a thread keeps the interpreter while others wait: the model's thread asks for it anew after every operation, and
# what reads images would keep it for long
TURN_S = 0.0005


def load_beside(load: Load, loaded: Callable[[Engine], None], failed: Callable[[BaseException], None]) -> None:
    """In a thread of its own, for importing torch alone takes seconds; what came of it is told in the event loop."""
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            engine = load()
        except BaseException as error:  # whatever it is, nobody else would hear of it
            tell(failed, error)
        else:
            # what is there now stays for good: looking through it again and again would only cost pauses
            gc.collect()
            gc.freeze()
            if engine.about.reads_images:
                sys.setswitchinterval(TURN_S)
            tell(loaded, engine)

    def tell(whom: Callable[..., None], what: object) -> None:
        with suppress(RuntimeError):  # the loop has ended in the meantime
            loop.call_soon_threadsafe(whom, what)

    threading.Thread(target=run, name="cenote-load", daemon=True).start()
