"""Layers of the transformer that model families describe by specs, over packed batches."""
