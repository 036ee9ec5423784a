"""RayConfig: whether the engines run on a Ray cluster, how many, and what each of them takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cenote.config.options import check_choices, option
from cenote.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Options of commands that can run on a Ray cluster."""

    engine: Literal["local", "ray"] = option(
        "where the model runs: on this machine, or in actors of a Ray cluster (needs the package ray)",
        default="local",
        choices=("local", "ray"),
    )
    address: str | None = option(
        "Ray cluster, such as auto or ray://HOST:10001; one is started on this machine if unset", default=None
    )
    min_replicas: int | None = option("Ray: smallest number of replicas of each model (default: 1)", default=None)
    max_replicas: int | None = option(
        "Ray: largest number of replicas; files: as many as the cluster has cores or GPUs for, servers: min_replicas "
        "if unset",
        default=None,
    )
    num_cpus: float = option(
        "Ray: cores of each replica, and its threads; a share such as 0.9 is one thread", default=1.0
    )
    num_gpus: float = option("Ray: GPUs of each replica", default=0.0)

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("num_cpus", "num_gpus"):
            if getattr(self, name) < 0:
                raise BadRequest(f"{name} must not be negative, got {getattr(self, name)}", param=name)
        low, high = self.min_replicas, self.max_replicas
        if low is not None and low < 0:
            raise BadRequest(f"min_replicas must not be negative, got {low}", param="min_replicas")
        if high is not None and high < max(1, low or 0):
            raise BadRequest(f"max_replicas {high} is below {max(1, low or 0)}", param="max_replicas")

    @property
    def is_ray(self) -> bool:
        return self.engine == "ray"

    @property
    def threads(self) -> int:
        """Threads of each replica on a CPU."""
        return max(1, round(self.num_cpus))
