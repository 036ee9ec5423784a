"""Find a checkpoint, read its files and load the model."""
