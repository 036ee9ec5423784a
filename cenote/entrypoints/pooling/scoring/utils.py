"""MaxSim of two matrices; mirrors `vllm.entrypoints.pooling.scoring.utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def compute_maxsim_score(q_emb: Tensor, d_emb: Tensor) -> Tensor:
    """Return the sum of the best similarities of the query's vectors, in float32. [q, d], [n, d] -> []"""
    # imports torch, for who calls this
    from cenote.pooling.max_sim import max_sim
    from cenote.pooling.torch_ops import TorchOps

    score: Tensor = max_sim(TorchOps(), q_emb.float(), d_emb.float(), [len(d_emb)])[0]
    return score
