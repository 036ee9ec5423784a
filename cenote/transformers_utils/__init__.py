"""Names of `vllm.transformers_utils`."""
