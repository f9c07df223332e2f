"""Random hostile input: each module makes a case from a seed, and checks what poscli does with it."""
