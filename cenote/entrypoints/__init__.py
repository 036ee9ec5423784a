"""Names of `vllm.entrypoints`."""
