"""What all servers of one run share: texts, requests, right answers and fault hooks."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cenote.bench.flags import parse_positive_float
from cenote.config.options import option
from cenote.utils.arguments import parse_non_negative_int, parse_positive_int
from lab.chaos.expectations import TOLERANCE
from lab.chaos.hook_folder import HookFolder
from lab.chaos.request_mix import ChaosRequest, TextMaker, fresh_embed, make_mix
from lab.chaos.sender import CheckedSender, Draw, LoadSettings, References, record_references
from lab.chaos.server import ChaosServer, ServerOptions, start_server
from lab.chaos.traced_client import TracedClient

API_KEYS = ("chaos-tenant-one", "chaos-tenant-two")
ATTACKER_KEY, ADMIN_KEY = "chaos-attacker", "chaos-operator"
NO_FAULTS = ("none",)  # as `ChaosOptions.faults`: only the load and the attackers
SHORT_WORDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    seed: int = option("of texts, load and order of faults", default=0)
    minutes: float = option("duration of the load", default=1.0, parse=parse_positive_float)
    faults: tuple[str, ...] = ()  # their names; empty: all
    max_faults: int | None = option(
        "end after so many faults, before --minutes are over", default=None, parse=parse_positive_int
    )
    model: str | None = option("hub name or folder; the default model if unset", default=None)
    front_ends: int = option("--api-server-count of the server", default=1, parse=parse_positive_int)
    rate: float = option("requests per second, at most 70% of the capacity", default=20.0, parse=parse_positive_float)
    bulk_clients: int = option("clients that send requests with many texts", default=1, parse=parse_non_negative_int)
    attackers: int = option(
        "processes that attack the server all the time; memory and descriptors must come back afterwards",
        default=0,
        parse=parse_non_negative_int,
    )
    max_fault_s: float = option(
        "duration of faults that last, such as a stopped engine", default=8.0, parse=parse_positive_float
    )
    fault_period_s: float = 0.0  # at least so long from the start of a fault to that of the next one
    step_timeout_s: float | None = option(  # None: the default of the server
        "--step-timeout-s of the server", default=30.0, parse=parse_positive_float
    )
    timeout_s: float = option("a reply that takes longer is lost", default=60.0, parse=parse_positive_float)
    device_tokens_per_s: int | None = option(
        "batches take as long as on a device of this speed: figures do not depend on other work of the machine",
        default=None,
        parse=parse_positive_int,
    )
    deterministic: bool = option("serve with --deterministic; results are bit-equal", default=False)
    serve_args: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    log: Path | None = None  # of the server

    @property
    def tolerance(self) -> float:
        return 0.0 if self.deterministic else TOLERANCE


class ChaosSession:
    def __init__(self, options: ChaosOptions, folder: Path) -> None:
        self.options = options
        self.log = options.log or folder / "server.log"
        self.source = random.Random(options.seed)
        self.texts = TextMaker(options.model, options.seed)
        self.mix = make_mix(self.texts)
        self.hooks = HookFolder(folder / "hooks", self.texts.poison(), options.device_tokens_per_s)
        self.references: References = {}
        self.unsupported: set[str] = set()  # kinds of requests that the model refuses

    @asynccontextmanager
    async def serve(self, serve_args: Sequence[str] = ()) -> AsyncIterator[ChaosServer]:
        """Start a server; the first one also gives the right answers."""
        async with start_server(self._server_options(serve_args), self.log) as server:
            if not self.references:
                async with self.make_client(server) as client:
                    self.references, self.unsupported = await record_references(
                        client, self.mix.all_requests(), API_KEYS
                    )
                self.mix = self.mix.without(self.unsupported)
            yield server

    def make_client(self, server: ChaosServer) -> TracedClient:
        return TracedClient(server.address, timeout_s=self.options.timeout_s)

    def make_sender(
        self, client: TracedClient, draw: Draw | None = None, *, has_aborts: bool = False, pauses: bool = False
    ) -> CheckedSender:
        """Return a sender of short texts that are never the same, or of what `draw` returns."""
        settings = LoadSettings(API_KEYS, self.options.tolerance, self.references)
        seed = self.source.getrandbits(32)
        return CheckedSender(client, settings, draw or self._draw, seed=seed, has_aborts=has_aborts, pauses=pauses)

    def _draw(self, source: random.Random) -> ChaosRequest:
        return fresh_embed(self.texts, 1, SHORT_WORDS)

    def _server_options(self, serve_args: Sequence[str]) -> ServerOptions:
        options = self.options
        flags = ["--deterministic"] if options.deterministic else []
        if options.attackers:
            # what attackers send is work too, and no reason to refuse the others
            flags += ["--admin-api-key", ADMIN_KEY, "--max-queue-seconds", f"{options.timeout_s / 2:g}"]
        if options.step_timeout_s is not None:
            flags += ["--step-timeout-s", f"{options.step_timeout_s:g}"]
        return ServerOptions(
            options.model,
            options.front_ends,
            [*flags, *serve_args, *options.serve_args],
            (*API_KEYS, ATTACKER_KEY) if options.attackers else API_KEYS,
            {**options.environment, **self.hooks.environment},
            has_grpc=options.attackers > 0 and importlib.util.find_spec("grpc") is not None,
        )
