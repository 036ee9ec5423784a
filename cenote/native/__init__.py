"""Transformers that run in C on NumPy arrays, built from the specs of model families; imports no torch."""
