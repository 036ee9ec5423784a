"""Pooling tasks on Ray: datasets (`embed` and the like), files (`run_files`) and Ray Serve (`cenote.ray.serve`).

Needs the packages of the extra `ray`.
"""

from cenote.ray.dataset import classify, embed, entities, map_task, rerank, score, sparse_embed, token_embed
from cenote.ray.files import FilesSummary, PartSummary, run_files
from cenote.ray.stage import CenoteStage

__all__ = [
    "CenoteStage",
    "FilesSummary",
    "PartSummary",
    "classify",
    "embed",
    "entities",
    "map_task",
    "rerank",
    "run_files",
    "score",
    "sparse_embed",
    "token_embed",
]
