"""The fast inner loops and how one is chosen."""
