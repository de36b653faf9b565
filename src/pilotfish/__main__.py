"""`python -m pilotfish` is `pilotfish`."""

from pilotfish.cli import main

main()
