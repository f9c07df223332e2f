"""`python -m poscli` is the same as `poscli`."""

from poscli.cli import main

main()
