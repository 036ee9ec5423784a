"""Benchmarks of speed, scaling and quality, and comparisons with other engines."""
