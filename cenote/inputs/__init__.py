"""From what people send to token ids."""
