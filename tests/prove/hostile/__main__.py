"""`python -m tests.prove.hostile FOLDER` writes the hostile images into a folder."""

import sys
from pathlib import Path

from tests.prove.hostile import write

sys.stdout.write(f"{write(Path(sys.argv[1]))} images\n")
