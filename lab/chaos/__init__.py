"""Chaos testing: a real server under load while faults are injected; every request must get one right answer."""
