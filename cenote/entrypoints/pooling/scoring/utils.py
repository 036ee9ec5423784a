"""MaxSim of two matrices; mirrors `vllm.entrypoints.pooling.scoring.utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def compute_maxsim_score(q_emb: Tensor, d_emb: Tensor) -> Tensor:
    """Return the sum of the best similarities of the query's vectors, in float32. [q, d], [n, d] -> []"""
    from cenote.kernels.max_sim import max_sim  # imports torch, for who calls this

    return max_sim(q_emb.float(), d_emb.float(), [len(d_emb)])[0]
