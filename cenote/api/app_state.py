"""What the routes share: the engine once it is there, the settings, and whether the server takes requests."""

from __future__ import annotations

import time
from typing import Literal

from cenote.api.auth import Keys
from cenote.config.engine import ServerConfig
from cenote.errors import EngineStopped, NotReady
from cenote.protocol.requests import Engine

State = Literal["loading", "ready", "draining", "stopped"]


class Service:
    def __init__(self, settings: ServerConfig) -> None:
        self.settings = settings
        self.keys = Keys(settings.api_key, settings.api_key_file)
        self.began = time.monotonic()
        self.created = int(time.time())
        self.num_in_flight = 0  # requests to the model whose replies are not finished
        self.num_elsewhere = 0  # the same, in other front-end processes
        self.others_ready = True  # whether any other front-end process would answer as well
        self._engine: Engine | None = None
        self._draining = False

    def ready(self, engine: Engine) -> None:
        self._engine = engine

    def drain(self) -> None:
        """Answer what comes, but ask every client to go elsewhere next time."""
        self._draining = True

    @property
    def state(self) -> State:
        if self._draining:
            return "draining"
        if self._engine is None or not self.others_ready:
            return "loading"
        return "ready" if self._engine.dead is None else "stopped"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise NotReady(f"the model is being loaded (for {self.seconds:.1f} s now); try again soon")
        return self._engine

    @property
    def loaded(self) -> Engine | None:
        return self._engine

    def check_ready(self) -> None:
        """Raise unless requests should come here."""
        dead = self.engine.dead
        if not self.others_ready:
            raise NotReady("a front-end process is about to be ready; try again soon")
        if dead is not None:
            raise EngineStopped(str(dead))
        if self._draining:
            raise NotReady("the server is about to stop; go elsewhere")
