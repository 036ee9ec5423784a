"""The engine process: one model, served to the front-ends over sockets."""
