"""poscli: which position encoding still works past the length it was trained on?"""

__version__ = "0.2.0"
