"""Benchmarks of speed and quality, and comparisons with other engines."""
