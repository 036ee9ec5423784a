"""Autoscaling policy of Ray Serve: as many replicas as keep the work in flight at about a second for each."""

from __future__ import annotations

from math import ceil
from typing import Any

TARGET_QUEUE_S = 1.0  # of work in flight for each replica


def scale_on_queue(context: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas by the tokens in flight and the measured speed of all replicas.

    Ray Serve applies the bounds and the delays of the autoscaling configuration, and starts the first replica itself.
    """
    by_replica = context.aggregated_metrics.get("queue_seconds", {}) if context.aggregated_metrics else {}
    queue_seconds = sum(by_replica.values())
    if queue_seconds > 0:
        return max(1, ceil(queue_seconds / TARGET_QUEUE_S)), {}
    return (1 if context.total_num_requests > 0 else 0), {}
