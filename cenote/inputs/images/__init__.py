"""Image processors: from decoded images to patches and placeholder tokens, per model family."""
