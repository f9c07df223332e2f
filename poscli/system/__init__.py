"""What every room may use: files, errors, memory, devices, plugins."""
