"""Compute kernels for CPUs and GPUs, and the selection of one per device and dtype."""
