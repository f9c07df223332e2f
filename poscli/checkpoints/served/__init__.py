"""Models behind a server: what positions they compute, seen from the log-probabilities that it gives."""
