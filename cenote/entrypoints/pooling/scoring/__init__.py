"""Names of `vllm.entrypoints.pooling.scoring`."""
