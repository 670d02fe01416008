"""What the trainer needs is in every image: the standard library, NumPy, TensorFlow and Keras."""

import ast
import sys

from runs import ROOT

EVERYWHERE = {*sys.stdlib_module_names, "numpy", "tensorflow", "keras", "trainer"}


def test_the_trainer_imports_nothing_that_an_image_may_lack() -> None:
    imported = {}
    for path in (ROOT / "trainer").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update({alias.name.split(".")[0]: path for alias in node.names})
            elif isinstance(node, ast.ImportFrom):
                imported[(node.module or "").split(".")[0]] = path
    assert {"tensorflow", "keras", "numpy"} <= imported.keys()
    assert {name: path for name, path in imported.items() if name not in EVERYWHERE} == {}
