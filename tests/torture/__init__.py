"""Long runs of random cases, beyond what the fast tests sample."""
