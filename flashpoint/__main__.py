"""`python -m flashpoint`."""

from flashpoint.cli import main

main()
