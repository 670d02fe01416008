"""Is the program of ENTRYPOINT or CMD there, and may it be executed?"""

from __future__ import annotations

import shlex

from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect
from builder.prove.suite import Answer, Check


def run(image: Image) -> Answer:
    """Look for the program as a shell would. Raises NotThereError where none is named."""
    command = [*(image.config.get("Entrypoint") or ()), *(image.config.get("Cmd") or ())]
    if not command:
        raise NotThereError("the image names no command: whoever starts it has to")
    search = ":".join(image.search_path)
    folder = str(image.config.get("WorkingDir") or "/")
    program = image.tree.program(str(command[0]), search, folder)
    defects = []
    if program is None:
        where = "" if "/" in command[0] else f" in PATH ({search})"
        defects.append(
            Defect(
                f"the image starts {command[0]}, which is not there{where}",
                "correct ENTRYPOINT or CMD, or install the program",
            )
        )
    elif not image.tree.files[program].mode & 0o111:
        fix = f"chmod +x {program}"
        defects.append(Defect(f"{program} may not be executed", fix))
    return defects, {"note": shlex.join(map(str, command))[:200]}


CHECK = Check.of("entry-point", 1, run)
