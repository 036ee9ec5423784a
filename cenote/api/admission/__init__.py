"""Admission: which requests the server accepts, by their cost, what is in flight and how fast the engines compute."""
