"""The supervisor: starts the engine process and the front-ends, and restarts what exits."""
