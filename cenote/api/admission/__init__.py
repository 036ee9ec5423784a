"""Admission: which requests the server accepts, by what they cost and what is in flight already."""
