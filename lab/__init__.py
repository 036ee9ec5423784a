"""Programs for those who work on Cenote: chaos tests, simulations and measurements. No part of the package.

Run from the root of a clone: `python -m lab.chaos`. What a `cenote` command runs is in `cenote/bench/`.
"""
