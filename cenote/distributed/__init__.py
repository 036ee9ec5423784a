"""Tensor parallelism over processes: the ranks of one model."""
