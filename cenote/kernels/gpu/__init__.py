"""Triton kernels for NVIDIA GPUs; imported only if one is present."""
