"""From decoded images to patches and tokens, in the way of each kind of model."""
