"""The ranks of a tensor-parallel model as threads of one process, which starts faster than processes do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cenote.config.engine import EngineConfig
from cenote.layers.parallel_group import ParallelGroup
from cenote.loading.rank_model import RankModel, load_rank
from cenote.packed_batch import PackedBatch

T = TypeVar("T")


def run_ranks(
    folder: Path, num_ranks: int, function: Callable[[RankModel, ParallelGroup], T], **options: Any
) -> list[T]:
    """Load every rank of a model and call a function with it, all at the same time; return the results by rank."""
    config = EngineConfig.from_kwargs(str(folder), device="cpu", **{"dtype": "float32", **options})
    groups = [ParallelGroup(rank, num_ranks) for rank in range(num_ranks)]
    models = [load_rank(config, group) for group in groups]
    store = folder / f"store-{num_ranks}"

    def run_rank(rank: int) -> T:
        groups[rank].connect(str(store), torch.device("cpu"), use_nccl=False)
        with torch.inference_mode():
            return function(models[rank], groups[rank])

    with ThreadPoolExecutor(num_ranks) as executor:
        results = list(executor.map(run_rank, range(num_ranks)))
    store.unlink()
    return results


def compute_states(folder: Path, num_ranks: int, batch: PackedBatch, **options: Any) -> Tensor:
    """Return the states of a batch, which are the same on every rank."""
    states = run_ranks(folder, num_ranks, lambda model, group: model.backbone(batch), **options)
    for other in states[1:]:
        assert torch.equal(states[0], other)
    return states[0]
