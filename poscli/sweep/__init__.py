"""Sweeps: the jobs of a suite (suite.py), what a job is (job.py), and what executes jobs (runners.py)."""
