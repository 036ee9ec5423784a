"""Names of `vllm.entrypoints.pooling.score`."""
