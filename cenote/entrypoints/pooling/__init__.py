"""Names of `vllm.entrypoints.pooling`."""
