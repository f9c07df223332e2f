"""Drawing with matplotlib: the page of a figure, its axes, line styles, bars, and numbers written as text."""
