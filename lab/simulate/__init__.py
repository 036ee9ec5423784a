"""`python -m lab.simulate`: how replicas of a measured server would serve a load."""
