"""How batches run: packing, executors, CUDA graphs, prefix sharing, token budget and warm-up."""
