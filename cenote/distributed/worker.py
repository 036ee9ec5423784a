"""Entry point of a rank other than the first: `python -m cenote.distributed.worker`, with an inherited socket.

It loads its part of the model and computes what the first rank asks for, until that closes the socket or exits.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
from dataclasses import replace

import torch

from cenote.config.engine_json import decode_engine_config
from cenote.distributed.batch_codec import count_elements, decode_batch
from cenote.distributed.messages import Connect, Failed, Loaded, RunBackbone, RunSplade, Start, receive_to_rank, send
from cenote.layers.parallel_group import ParallelGroup
from cenote.loading.rank_model import RankModel, load_rank
from cenote.packed_batch import PackedBatch
from cenote.utils.child_process import ENGINE_OOM_SCORE, exit_with_parent, prefer_as_oom_victim

EXIT_FAILED = 70


class RankWorker:
    """Computes the part of one rank."""

    def __init__(self, model: RankModel, group: ParallelGroup, device: torch.device) -> None:
        self.model = model
        self.group = group
        self.device = device
        self._last: tuple[torch.Tensor, PackedBatch] | None = None  # states and batch, for the head

    def run(self, message: RunBackbone | RunSplade) -> None:
        if isinstance(message, RunSplade):
            assert self._last is not None and self.model.splade is not None, "the first rank has sent a batch before"
            self.model.splade(*self._last, message.seq_indices)
            return
        columns = torch.empty(count_elements(message.header), dtype=torch.int64, device=self.device)
        batch = decode_batch(message.header, self.group.broadcast(columns))
        states = self.model.backbone(batch)
        self._last = None if self.model.splade is None else (states, batch)


def main(socket_fd: int) -> None:
    exit_with_parent()
    prefer_as_oom_victim(ENGINE_OOM_SCORE)
    faulthandler.enable()
    # only the process that started this one decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("cenote").setLevel(logging.ERROR)  # the first rank logs the same
    sock = socket.socket(fileno=socket_fd)
    try:
        _serve(sock)
    except Exception as error:
        logging.getLogger("cenote").exception("a rank of the model failed")
        send(sock, Failed(f"{type(error).__name__}: {error}"))
        os._exit(EXIT_FAILED)


def _serve(sock: socket.socket) -> None:
    start = receive_to_rank(sock)
    if start is None:
        return
    assert isinstance(start, Start), "the first message"
    if start.num_threads is not None:
        torch.set_num_threads(start.num_threads)
    config = decode_engine_config(start.config)
    device = torch.device(config.devices[start.rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of kernels that are compiled on first use
    group = ParallelGroup(start.rank, start.num_ranks)
    model = load_rank(replace(config, device=str(device), devices=()), group)
    send(sock, Loaded(model.num_read_bytes))
    connect = receive_to_rank(sock)
    if connect is None:
        return
    assert isinstance(connect, Connect), "the second message"
    group.connect(connect.store_file, device, use_nccl=connect.use_nccl)
    worker = RankWorker(model, group, device)
    with torch.inference_mode():
        while (message := receive_to_rank(sock)) is not None:
            assert isinstance(message, RunBackbone | RunSplade)
            worker.run(message)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)  # a thread inside torch would abort a regular exit
