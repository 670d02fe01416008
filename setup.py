"""The wheel's own part: the factory's locks (images/) and its templates travel in it, below
builder/factory/."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class Build(build_py):
    """Copies images/ and templates/ beside the packages, except into an editable installation."""

    def run(self) -> None:
        super().run()
        parts = (*Path("images").rglob("*.*"), *Path("templates").rglob("*.j2"))
        for path in () if self.editable_mode else parts:
            if path.suffix in {".lock", ".yaml", ".j2"} and not path.name.startswith("."):
                to = Path(self.build_lib, "builder", "factory", path)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)


setup(cmdclass={"build_py": Build})
