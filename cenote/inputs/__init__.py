"""Render inputs (texts, token ids, pairs, conversations, images) to token ids and preprocessed images."""
