"""PoolingParams under its name in `vllm.pooling_params`."""

from cenote.protocol.params import PoolingParams

__all__ = ["PoolingParams"]
