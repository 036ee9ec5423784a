"""What travels between the supervisor, the front-ends and the engine process."""
