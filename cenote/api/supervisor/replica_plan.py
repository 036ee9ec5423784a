"""Which device or cores each replica of a model gets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from cenote.config.engine import EngineConfig
from cenote.errors import BadRequest
from cenote.utils.cpu_topology import Core, CpuShare, divide_cores, read_nodes
from cenote.utils.cuda_devices import count_cuda_devices
from cenote.utils.system_limits import find_cpu_quota


class ReplicaPlan(NamedTuple):
    config: EngineConfig  # of one replica
    cpus: tuple[int, ...] = ()  # that its process runs on; empty: all
    num_threads: int = 0  # of torch; 0: its default


def plan_replicas(
    config: EngineConfig, nodes: Sequence[Sequence[Core]] | None = None, num_gpus: int | None = None
) -> list[ReplicaPlan]:
    """Return a plan for each replica; `nodes` and `num_gpus` are those of this machine if they are not given."""
    count, ranks = config.num_replicas, config.tensor_parallel_size
    if count == 1:
        return [ReplicaPlan(_take_devices(config, config.devices, config.device), num_threads=_limit_threads(0, count))]
    devices = config.devices or _choose_devices(config, count * ranks, num_gpus)
    _check_gpus(devices, num_gpus)
    configs = [_take_devices(config, devices[start : start + ranks]) for start in range(0, count * ranks, ranks)]
    if any(device != "cpu" for device in devices):
        return [ReplicaPlan(item) for item in configs]
    shares = _divide_cpu(count, read_nodes() if nodes is None else nodes)
    return [
        ReplicaPlan(item, share.cpus, _limit_threads(share.num_cores, count))
        for item, share in zip(configs, shares, strict=True)
    ]


def _limit_threads(num_threads: int, num_replicas: int) -> int:
    """Return the number of threads of one of several replicas: no more than its part of a quota of CPU time.

    More threads would use up the quota in a part of each period, and then all would stand still for the rest of it.
    """
    if (quota := find_cpu_quota()) is None or quota / num_replicas >= (num_threads or os.cpu_count() or 1):
        return num_threads
    return max(1, ceil(quota / num_replicas))


def _take_devices(config: EngineConfig, devices: Sequence[str], device: str | None = None) -> EngineConfig:
    """Return the configuration of one replica, with a device for each of its processes."""
    if len(devices) == 1:
        device, devices = devices[0], ()
    return replace(config, device=device, devices=tuple(devices), data_parallel_size=1)


def _choose_devices(config: EngineConfig, count: int, num_gpus: int | None) -> Sequence[str]:
    """Return the GPUs in order, or the CPU for every replica."""
    if config.device not in (None, "cpu", "cuda"):
        raise BadRequest(
            f"device={config.device!r} is one device for {count} processes; use --devices with {count} names, or "
            "--device cuda for the first GPUs",
            param="device",
        )
    num_gpus = count_cuda_devices() if num_gpus is None else num_gpus
    if config.device == "cpu" or (config.device is None and not num_gpus):
        return ["cpu"] * count
    if count > num_gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        limit = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise BadRequest(
            f"data_parallel_size={config.data_parallel_size} and tensor_parallel_size={config.tensor_parallel_size} "
            f"need {count} GPUs, {num_gpus} are visible{limit}; use at most {num_gpus}, or --device cpu",
            param="data_parallel_size",
        )
    return [f"cuda:{index}" for index in range(count)]


def _check_gpus(devices: Sequence[str], num_gpus: int | None) -> None:
    indices = [int(number) for name, _, number in (device.partition(":") for device in devices) if number]
    if not indices:
        return
    num_gpus = count_cuda_devices() if num_gpus is None else num_gpus
    if max(indices) >= num_gpus:
        valid = f"valid are cuda:0 to cuda:{num_gpus - 1}" if num_gpus else "no GPU is visible"
        raise BadRequest(f"devices={','.join(devices)}: cuda:{max(indices)} does not exist; {valid}", param="devices")


def _divide_cpu(count: int, nodes: Sequence[Sequence[Core]]) -> list[CpuShare]:
    num_cores = sum(map(len, nodes))
    if count > num_cores:
        raise BadRequest(
            f"data_parallel_size={count} needs {count} CPU cores, this process may use {num_cores}; use at most "
            f"{num_cores}",
            param="data_parallel_size",
        )
    return divide_cores(nodes, count)
