"""Several HTTP front-end processes in front of one engine process, and the messages between them."""
