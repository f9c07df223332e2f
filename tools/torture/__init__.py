"""Torture: what a run must survive, and how often it was tried. `make torture` runs all of it.

Each file tries one kind of harm. A trial returns the faults found: an empty list if the program did what it must.
"""
