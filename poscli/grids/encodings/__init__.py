"""The encodings of rows and columns: one paper, one file."""
