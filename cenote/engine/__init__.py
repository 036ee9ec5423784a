"""The engine: admission, preprocessing, scheduling, execution and delivery of results."""
