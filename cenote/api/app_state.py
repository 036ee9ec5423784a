"""What the routes share: the engine once it is there, the settings, and whether the server takes requests."""

from __future__ import annotations

import time
from typing import Literal

from cenote.api.auth import ApiKeyStore
from cenote.config.server import ServerConfig
from cenote.errors import EngineStopped, NotReady
from cenote.protocol.engine import Engine

ServerStatus = Literal["loading", "ready", "draining", "stopped"]


class AppState:
    def __init__(self, settings: ServerConfig) -> None:
        self.settings = settings
        self.api_keys = ApiKeyStore(settings.api_key, settings.api_key_file)
        self.started_at = time.monotonic()
        self.created = int(time.time())
        self.num_in_flight = 0  # requests to the model whose replies are not finished
        self.num_in_flight_elsewhere = 0  # the same, in other front-end processes
        self.are_front_ends_ready = True  # whether any other front-end process would answer as well
        self._engine: Engine | None = None
        self._is_draining = False

    def set_engine(self, engine: Engine) -> None:
        self._engine = engine

    def start_draining(self) -> None:
        """Answer what comes, but ask every client to go elsewhere next time."""
        self._is_draining = True

    @property
    def status(self) -> ServerStatus:
        if self._is_draining:
            return "draining"
        if self._engine is None or not self.are_front_ends_ready:
            return "loading"
        return "ready" if self._engine.dead_error is None else "stopped"

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise NotReady(f"the model is being loaded (for {self.uptime_s:.1f} s now); try again soon")
        return self._engine

    @property
    def engine_or_none(self) -> Engine | None:
        return self._engine

    def check_ready(self) -> None:
        """Raise unless requests should come here."""
        dead = self.engine.dead_error
        if not self.are_front_ends_ready:
            raise NotReady("a front-end process is about to be ready; try again soon")
        if dead is not None:
            raise EngineStopped(str(dead))
        if self._is_draining:
            raise NotReady("the server is about to stop; go elsewhere")
