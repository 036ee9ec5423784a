"""How Ray Serve selects a replica: the one with fewer requests of two, on whichever node they are."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import FIFOMixin, RequestRouter

NUM_CHOICES = 2


class TwoChoicesRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Ray Serve compares the queues of the replicas that it is given.

    Its own router prefers replicas on the node of the proxy until they refuse requests. Ours accept hundreds to fill
    batches, so that those of other nodes would stay idle.
    """

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        return [random.sample(candidate_replicas, min(NUM_CHOICES, len(candidate_replicas)))]
