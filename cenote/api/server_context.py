"""ServerContext: what each process of a server knows about it before any model is loaded."""

from __future__ import annotations

import time

from cenote.api.admission.counters import Counters
from cenote.api.api_keys import ApiKeyStore
from cenote.config.server import ServerConfig


class ServerContext:
    def __init__(self, settings: ServerConfig, counters: Counters) -> None:
        """`counters`: of what all front-ends have in flight. Raises LoadError if a key file cannot be used."""
        self.settings = settings
        self.counters = counters
        self.api_keys = ApiKeyStore(settings.api_key, settings.api_key_file, settings.admin_api_key)
        self.started_at = time.monotonic()  # of the server
        self.created = int(time.time())  # the same as Unix time

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started_at
