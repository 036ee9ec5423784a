"""The threads of an engine in an actor."""

from __future__ import annotations

import os


def set_threads(threads: int | None) -> None:
    """Compute with so many threads in this process; None: as many as torch selects."""
    if threads is None:
        return
    # torch reads the first when it is imported; threads that spin take cores from the other actors of the node
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(threads)
