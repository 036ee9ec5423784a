"""Tasks made of pool requests: scores, entities and the processing of plugins."""
