"""Load generation in several processes, for servers that are faster than one client process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from cenote.bench.load import EncodedRequest, GoodReplies, LoadPattern, RequestSender, run_load
from cenote.bench.load_stats import LoadRound
from cenote.utils.async_http_client import AsyncHttpClient, ServerAddress

START_DELAY_S = 0.05  # between the start message and the first request, so that all processes start together
EXIT_TIMEOUT_S = 5.0


class ClientProcesses:
    """Client processes that each send a share of the requests; every round runs in all of them in parallel."""

    def __init__(
        self, num_processes: int, address: ServerAddress, requests: Sequence[EncodedRequest], timeout_s: float
    ) -> None:
        context = get_context("spawn")  # fork() is unsafe while other threads hold locks
        self.num_processes = num_processes
        self.pipes: list[Connection] = []
        self.processes = []
        for number in range(num_processes):
            ours, theirs = context.Pipe()
            share = requests[number::num_processes] or requests
            process = context.Process(
                target=_client_process_main, args=(theirs, address, share, timeout_s), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run_round(self, load: LoadPattern, num_warmups: int) -> LoadRound:
        for number, pipe in enumerate(self.pipes):
            pipe.send((load.split_share(number, self.num_processes), -(-num_warmups // self.num_processes)))
        for pipe in self.pipes:
            pipe.recv()  # "ready"
        began = time.perf_counter() + START_DELAY_S  # the same clock in all processes
        for pipe in self.pipes:
            pipe.send(began)
        parts: list[LoadRound] = [pipe.recv() for pipe in self.pipes]
        samples = [sample for part in parts for sample in part.samples]
        return LoadRound(samples, sum(part.cpu_s for part in parts), sum(part.num_resent for part in parts))

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()  # the process exits at EOF
        for process in self.processes:
            process.join(EXIT_TIMEOUT_S)
            process.kill()


def _client_process_main(
    pipe: Connection, address: ServerAddress, requests: Sequence[EncodedRequest], timeout_s: float
) -> None:
    """Run one round per message until the pipe is closed."""
    good_replies: GoodReplies = {}

    async def run_round(load: LoadPattern, num_warmups: int) -> LoadRound:
        async with AsyncHttpClient(address, timeout_s=timeout_s) as client:
            if num_warmups:
                concurrency = load.concurrency or load.max_concurrency or 1
                await run_load(
                    RequestSender(client, requests, good_replies), LoadPattern(concurrency, num_requests=num_warmups)
                )
            pipe.send("ready")
            began: float = pipe.recv()
            sender = RequestSender(client, requests, good_replies)
            resent, cpu_s = client.num_resent, time.process_time()
            await asyncio.sleep(max(0.0, began - time.perf_counter()))
            await run_load(sender, load)
            return LoadRound(sender.samples, time.process_time() - cpu_s, client.num_resent - resent)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(runner.run(run_round(*pipe.recv())))
