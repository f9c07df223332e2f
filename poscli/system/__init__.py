"""What every room may use: device, memory, provenance, files, errors, console, progress, signals, seeds, registry."""
