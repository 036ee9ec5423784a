"""Pool token states into results: pooling method, head, activation."""
