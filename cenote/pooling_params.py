"""The parameters of pooling under their names in `vllm.pooling_params`."""

from cenote.protocol.params import LateChunkingParams, PoolingParams

__all__ = ["LateChunkingParams", "PoolingParams"]
