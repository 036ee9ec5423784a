"""Names of `vllm.multimodal`."""
