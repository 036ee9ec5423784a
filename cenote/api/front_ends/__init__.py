"""Processes that answer HTTP before one engine, and the line between them and its process."""
