"""`python -m cenote.bench.simulate`: how replicas of a measured server would serve a load."""
