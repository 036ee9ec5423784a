"""Answers that are kept, in memory and on disk, for inputs that come again."""
