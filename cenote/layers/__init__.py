"""The one transformer that family descriptions describe, over packed batches."""
