"""Cenote beside other engines: the same texts and weights, in turns, each in a process of its own."""
