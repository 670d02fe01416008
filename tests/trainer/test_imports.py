"""Every image has what the trainer needs: the standard library, TensorFlow with what
it depends on (NumPy, Keras, protobuf), and what trainer/requirements.txt asks for."""

import ast
import sys
from collections.abc import Iterator

from tests import ROOT

EVERYWHERE = {*sys.stdlib_module_names, "numpy", "tensorflow", "keras", "google", "trainer"} | {
    "psutil",
    "simplejpeg",
    "cykooz_resizer",
}
TOOLS = {"PIL", "google_crc32c", "pynvml", "tf_keras", "libtpu"}
"""Packages of the tools, or optional ones: they are imported inside functions."""


def imported(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """(package, whether inside a function) of each import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "trainer" if node.level else str(node.module).split(".")[0], inside
        deeper = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imported(node, deeper)


def test_the_trainer_imports_nothing_that_an_image_may_lack() -> None:
    found = {
        (name, path.name, inside)
        for path in (ROOT / "trainer").rglob("*.py")
        for name, inside in imported(ast.parse(path.read_text()))
    }
    assert {"tensorflow", "keras", "numpy"} <= {name for name, *_ in found}
    assert {
        (name, file)
        for name, file, inside in found
        if name not in EVERYWHERE and not (inside and name in TOOLS)
    } == set()
