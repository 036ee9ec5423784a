"""Performance analysis: the roofline of a model on this machine, the measured speed, and the bottlenecks."""
