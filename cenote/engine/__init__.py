"""The engine: checks of requests, preprocessing, scheduling, execution and delivery of results."""
