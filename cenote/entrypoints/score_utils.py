"""Types of score inputs under their names in `vllm.entrypoints.score_utils`."""

from cenote.protocol.prompts import ScoreContentPartParam, ScoreMultiModalParam

__all__ = ["ScoreContentPartParam", "ScoreMultiModalParam"]
