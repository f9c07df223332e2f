"""Trained models at growing lengths: protocols, baselines, losses."""
