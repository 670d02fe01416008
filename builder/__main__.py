"""`python -m builder` is `builder`."""

from builder.cli import main

main()
