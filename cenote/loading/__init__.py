"""From a name on the command line to a model ready to run."""
