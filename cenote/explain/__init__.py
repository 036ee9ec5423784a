"""What a model could reach on this machine, what it reaches, and what stands between the two."""
