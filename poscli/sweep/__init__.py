"""The jobs of a suite, and the workers that execute them."""
