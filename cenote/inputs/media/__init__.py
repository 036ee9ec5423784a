"""From what a caller gave as an image to its pixels, whoever the caller is."""
