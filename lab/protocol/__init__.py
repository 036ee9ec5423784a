"""`python -m lab.protocol`: front-ends, supervisor and engine processes, simulated with faults by the thousand."""
