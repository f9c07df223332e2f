"""What checkpoints add to the command line: `poscli card`, `poscli advise` and `poscli extrapolate --model`."""
