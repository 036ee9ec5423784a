"""Checks of a running server, Cenote's or another one: requests of known clients, comparison, recording and replay."""
