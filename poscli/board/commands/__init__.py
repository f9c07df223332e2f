"""The commands of the board."""
