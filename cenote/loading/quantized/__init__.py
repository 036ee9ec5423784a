"""Checkpoints with quantized weights: each method dequantizes the tensors of its format when they are read."""
