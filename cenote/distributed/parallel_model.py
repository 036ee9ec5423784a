"""Load a tensor-parallel model: this process is its first rank, and computes the pooling."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.config.device import Device, parse_device
from cenote.config.engine import EngineConfig
from cenote.distributed.batch_codec import encode_batch
from cenote.distributed.messages import RunBackbone, RunSplade
from cenote.distributed.ranks import RankProcesses
from cenote.errors import LoadError
from cenote.layers.parallel_group import ParallelGroup
from cenote.loading.load import load_model
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.model_description import ModelDescription
from cenote.packed_batch import PackedBatch
from cenote.pooling.parallel_splade import ParallelSpladeHead

logger = logging.getLogger("cenote")


class ParallelBackbone(nn.Module):
    """The first rank of a split backbone: sends every batch to the others and computes its part."""

    def __init__(self, backbone: nn.Module, ranks: RankProcesses) -> None:
        super().__init__()
        self.backbone = backbone
        self.ranks = ranks

    def forward(self, batch: PackedBatch) -> Tensor:
        encoded = encode_batch(batch)
        self.ranks.send(RunBackbone(encoded.header))
        try:
            self.ranks.group.broadcast(encoded.tensor)
            states: Tensor = self.backbone(batch)
        except Exception as error:  # the other ranks may be in the middle of the same batch
            raise self.ranks.make_error(error) from error
        return states


def load_parallel_model(config: EngineConfig) -> LoadedModel:
    """Load a model with its layers split over `tensor_parallel_size` processes."""
    started: list[RankProcesses] = []

    def start_ranks(description: ModelDescription) -> ParallelGroup:
        started.append(RankProcesses(config, resolve_devices(config, description.device.value)))
        return started[0].group

    try:
        model = load_model(config, start_ranks=start_ranks)
        (ranks,) = started
        ranks.connect()
    except BaseException:
        for ranks in started:
            ranks.close()
        raise
    if isinstance(splade := model.pooler.heads.splade, ParallelSpladeHead):
        splade.before_forward = lambda seq_indices: ranks.send(RunSplade(list(seq_indices)))
    _log(model, ranks)
    return replace(model, backbone=ParallelBackbone(model.backbone, ranks).eval(), ranks=ranks)


def resolve_devices(config: EngineConfig, first: Device) -> list[str]:
    """Return the device of every rank: those of the options, or the first one and those that follow it."""
    size = config.tensor_parallel_size
    if config.devices:
        kinds = {parse_device(name).type for name in config.devices}
        if len(kinds) > 1:
            raise LoadError(f"devices={list(config.devices)} are of several kinds; use GPUs only, or cpu for all")
        return list(config.devices)
    if first.type == "cpu":
        return ["cpu"] * size
    start, count = first.index or 0, torch.cuda.device_count()
    if start + size > count:
        raise LoadError(
            f"tensor_parallel_size={size} from {first} on needs {start + size} GPUs, but torch found {count}; use "
            f"tensor_parallel_size={max(1, count - start)} or less"
        )
    return [f"cuda:{start + rank}" for rank in range(size)]


def _log(model: LoadedModel, ranks: RankProcesses) -> None:
    """Log how the model is split, and what is slower than in one process."""
    device = model.description.device.value
    is_cuda = device.type == "cuda"
    slower = ["small batches run without CUDA graphs" if is_cuda else "layers run without the native encoder"]
    if len(set(ranks.devices)) < len(ranks.devices) and is_cuda:
        slower.append("processes share a GPU, and exchange data through the host (gloo)")
    if model.description.deterministic:
        slower.append("with deterministic results every sequence runs alone")
    logger.info("tensor parallelism over %s; unlike in one process, %s", ", ".join(ranks.devices), "; ".join(slower))
