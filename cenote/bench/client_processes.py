"""Clients in processes of their own, where one process cannot ask as fast as a server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from cenote.bench.client import HttpClient, ServerAddress
from cenote.bench.load import EncodedRequest, GoodReplies, LoadPattern, RequestSender, run_load
from cenote.bench.load_stats import LoadRound

START_DELAY_S = 0.05  # from the word to begin to the first request, so that all of them begin together
EXIT_TIMEOUT_S = 5.0


class ClientProcesses:
    """Each has its share of the requests and of the load; a round is done by all of them at once."""

    def __init__(
        self, num_processes: int, address: ServerAddress, requests: Sequence[EncodedRequest], timeout_s: float
    ) -> None:
        context = get_context("spawn")  # a fork would copy threads in the middle of something
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
        for number, line in enumerate(self.pipes):
            line.send((load.split_share(number, self.num_processes), -(-num_warmups // self.num_processes)))
        for line in self.pipes:
            line.recv()  # which says that it is ready
        began = time.perf_counter() + START_DELAY_S  # a clock that all processes share
        for line in self.pipes:
            line.send(began)
        parts: list[LoadRound] = [line.recv() for line in self.pipes]
        samples = [sample for part in parts for sample in part.samples]
        return LoadRound(samples, sum(part.cpu_s for part in parts), sum(part.num_resent for part in parts))

    def close(self) -> None:
        for line in self.pipes:
            line.close()  # which they take for the end
        for process in self.processes:
            process.join(EXIT_TIMEOUT_S)
            process.kill()


def _client_process_main(
    pipe: Connection, address: ServerAddress, requests: Sequence[EncodedRequest], timeout_s: float
) -> None:
    """The life of one process: a round whenever it is told to."""
    good: GoodReplies = {}

    async def round_of(load: LoadPattern, num_warmups: int) -> LoadRound:
        async with HttpClient(address, timeout_s=timeout_s) as client:
            if num_warmups:
                at_once = load.concurrency or load.max_concurrency or 1
                await run_load(RequestSender(client, requests, good), LoadPattern(at_once, num_requests=num_warmups))
            pipe.send("ready")
            began: float = pipe.recv()
            sender = RequestSender(client, requests, good)
            resent, cpu_s = client.num_resent, time.process_time()
            await asyncio.sleep(max(0.0, began - time.perf_counter()))
            await run_load(sender, load)
            return LoadRound(sender.samples, time.process_time() - cpu_s, client.num_resent - resent)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(runner.run(round_of(*pipe.recv())))
