"""Read rows of texts from files, and write results to files that can be resumed."""
