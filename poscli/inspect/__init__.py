"""What one encoding does: its numbers, its measured properties and its pictures, as `poscli inspect` shows them."""
