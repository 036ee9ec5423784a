"""Names of `vllm.lora`."""
