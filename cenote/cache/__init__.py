"""Result cache: results of repeated inputs, in memory and on disk."""
