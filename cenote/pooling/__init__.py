"""From token states to answers: method, head, activation."""
