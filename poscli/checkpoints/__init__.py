"""Models of Hugging Face: their positions, and how they run under other encodings."""
