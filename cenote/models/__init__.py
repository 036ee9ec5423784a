"""One small file per model family: a description, not an implementation."""
