"""From token ids to vectors."""
