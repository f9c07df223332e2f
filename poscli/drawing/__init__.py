"""Figures: pages, axes, line styles, numbers as text."""
