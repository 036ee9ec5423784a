"""Types of score inputs under their names in `vllm.entrypoints.pooling.scoring.typing`."""

from cenote.protocol.prompts import ScoreContentPartParam, ScoreMultiModalParam

__all__ = ["ScoreContentPartParam", "ScoreMultiModalParam"]
