"""The language model around an encoding."""
