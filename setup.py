"""The wheel's own part: the factory's locks (images/) travel in it, below builder/factory/."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class Build(build_py):
    """Copies images/ beside the packages, except into an editable installation."""

    def run(self) -> None:
        super().run()
        for path in () if self.editable_mode else Path("images").rglob("*.*"):
            if path.suffix in {".lock", ".yaml"} and not path.name.startswith("."):
                to = Path(self.build_lib, "builder", "factory", path)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)


setup(cmdclass={"build_py": Build})
