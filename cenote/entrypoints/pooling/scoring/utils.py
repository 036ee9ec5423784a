"""MaxSim of two matrices; mirrors `vllm.entrypoints.pooling.scoring.utils`."""

from __future__ import annotations

from torch import Tensor

from cenote.pooling.max_sim import max_sim
from cenote.pooling.torch_ops import TorchOps


def compute_maxsim_score(q_emb: Tensor, d_emb: Tensor) -> Tensor:
    """Return the sum of the best similarities of the query's vectors, in float32. [q, d], [n, d] -> []"""
    score: Tensor = max_sim(TorchOps(), q_emb.float(), d_emb.float(), [len(d_emb)])[0]
    return score
