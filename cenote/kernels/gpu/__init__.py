"""Kernels in Triton for NVIDIA GPUs; imported only where there is one."""
