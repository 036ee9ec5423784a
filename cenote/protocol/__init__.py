"""Requests, results, inputs and the Engine protocol: the types that callers and the engine share; imports no torch."""
