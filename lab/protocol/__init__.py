"""`python -m lab.protocol`: what lies between front-ends and engine processes, simulated with faults by the thousand."""
