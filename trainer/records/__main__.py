"""`python -m trainer.records SOURCE OUT`."""

import sys

from trainer.records.command import main

if __name__ == "__main__":
    sys.exit(main())
