"""The probe of imports, and what every probe is held to."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.prove.probes import imports

BUILDER = Path(imports.__file__).parents[2]
PROBES = sorted((*BUILDER.glob("prove/probes/*.py"), *BUILDER.glob("frameworks/*/probes/**/*.py")))


def problems(folder: Path, *proven_elsewhere: str) -> list[str]:
    answer: Any = imports.examine(folder, proven_elsewhere)
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]]


def test_the_probe_names_the_line_of_an_import_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import os, json\nimport helper\nfrom package.inside import x\n"
        "try:\n    import not_there_but_guarded\nexcept ImportError:\n    pass\n"
        "def late():\n    import not_there_at_all.sub\n"
        "from . import relative\n"
    )
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package/inside.py").write_text("import pytest\nfrom sibling import y\n")
    (tmp_path / "package/sibling.py").touch()
    assert problems(tmp_path) == [
        "main.py:9: import not_there_at_all.sub: no module named not_there_at_all"
    ]
    assert imports.examine(tmp_path)["seen"] == {"modules": ["pytest"]}


def test_the_probe_names_a_syntax_error_and_a_library_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another check proves is found, and not imported."""
    folder, library = tmp_path / "app", tmp_path / "site"
    folder.mkdir()
    library.mkdir()
    (library / "half_a_library.py").write_text("raise OSError('libx.so.1: cannot open')\n")
    monkeypatch.syspath_prepend(library)
    (folder / "a.py").write_text("def f(:\n")
    (folder / "b.py").write_text("import half_a_library\nimport not_there_at_all\n")
    lacks = "b.py:2: import not_there_at_all: no module named not_there_at_all"
    syntax, *missing = problems(folder, "half_a_library", "not_there_at_all")
    assert (syntax[:7], missing) == ("a.py:1:", [lacks])
    message = "b.py:1: import half_a_library: OSError: libx.so.1: cannot open"
    assert problems(folder)[1:] == [message, lacks]


@pytest.mark.parametrize("path", PROBES, ids=lambda path: "/".join(path.parts[-3:]))
def test_probes_run_on_an_old_python_with_its_stdlib_alone(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Import):
            imported.update(alias.name.partition(".")[0] for alias in node.names)
    assert imported <= sys.stdlib_module_names | {"builder"}


def test_a_package_that_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    """Its loader's error stands behind the package's own, and is the line that tells why."""
    package = tmp_path / "site" / "wordreels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "try:\n    raise OSError('libwordreels.so: undefined symbol: _ZN5torch3jit')\n"
        "except OSError as error:\n    raise ImportError('Could not load it') from error\n"
    )
    program = tmp_path / "program"
    program.mkdir()
    (program / "train.py").write_text("import wordreels\n")
    sys.path.insert(0, str(package.parent))
    try:
        (problem,) = imports.examine(program)["problems"]  # type: ignore[misc, attr-defined]
    finally:
        sys.path.remove(str(package.parent))
    assert "undefined symbol: _ZN5torch3jit" in problem["message"]
    assert problem["fix"].startswith("wordreels is there")
