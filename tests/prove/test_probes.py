"""The probe of imports, and what every probe is held to."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.prove.probes import imports

BUILDER = Path(imports.__file__).parents[2]
PROBES = sorted((*BUILDER.glob("prove/probes/*.py"), *BUILDER.glob("frameworks/*/probes/**/*.py")))


def examined(folder: Path, module: str, *proven_elsewhere: str) -> tuple[list[str], Any]:
    """The problems of a program, and what was seen of it."""
    answer: Any = imports.examine(folder, module, proven_elsewhere)
    assert all(problem["fix"] for problem in answer["problems"])
    return [problem["message"] for problem in answer["problems"]], answer["seen"]


def written(folder: Path, **files: str) -> Path:
    """A folder with these modules."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_all_that_is_missing_is_named_at_once_with_its_lines(tmp_path: Path) -> None:
    modules = {
        "main": "import os, helper\nfrom package.inside import x\nimport lacks_a.sub\n",
        "helper": "import lacks_b\nimport lacks_a\n",
        "package/inside": "import pytest\nfrom sibling import y\nfrom . import more\n",
        "package/sibling": "",
        "package/more": "if __name__ == '__main__':\n    import lacks_c\n",
        "bench": "import lacks_bench\n",
    }
    written(tmp_path, **modules)
    (problem,), seen = examined(tmp_path, "main")
    listed = "lacks_a (main.py:3), lacks_b (helper.py:1), lacks_c (package/more.py:2)"
    assert problem == f"the image lacks what the program imports: {listed}"
    assert seen == {"modules": ["pytest"]}, "nothing imports bench.py"


@pytest.mark.parametrize(
    "text",
    [
        "def late():\n    import lacks\n",
        "try:\n    import lacks\nexcept ImportError:\n    lacks = None\n",
        "with contextlib.suppress(ImportError):\n    import lacks\n",
        "if options.wandb:\n    import lacks\n",
        "def late():\n    import logger\n",
    ],
)
def test_what_training_may_not_need_is_a_note(text: str, tmp_path: Path) -> None:
    written(tmp_path, main=text, logger="import lacks\n")
    missing, seen = examined(tmp_path, "main")
    assert (missing, seen["modules"]) == ([], [])
    assert seen["note"].startswith("lacks what functions, conditions or `try` import: lacks (")
    types = "if typing.TYPE_CHECKING:\n    import lacks\nelse:\n    import pytest\n"
    assert examined(written(tmp_path, main=types), "main") == ([], {"modules": ["pytest"]})


def test_a_package_is_followed_from_what_it_starts(tmp_path: Path) -> None:
    """Also where a folder with data has a library's name."""
    modules = {
        "fit/__init__": "from .net import Net\n",
        "fit/__main__": "from . import loop\nimport pluggy\n",
        "fit/net": "import lacks_net\n",
        "fit/loop": "from fit.deep.er import x\n",
        "fit/deep/er": "from ..net import Net\nfrom ... import fit\nimport lacks_deep\n",
    }
    written(tmp_path, **modules)
    (tmp_path / "pluggy").mkdir()
    (problem,), seen = examined(tmp_path, "fit")
    assert problem.endswith("lacks_net (fit/net.py:1), lacks_deep (fit/deep/er.py:3)")
    assert seen == {"modules": ["pluggy"]}


def test_the_probe_names_a_syntax_error_and_a_library_that_does_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another check proves is found, and not imported."""
    site = {"half_a_library": "raise OSError('libx.so.1: cannot open')", "alone": "import lacks.a"}
    library = written(tmp_path / "site", **site)
    monkeypatch.syspath_prepend(library)
    folder = written(
        tmp_path / "app",
        main="import a, b\ntry:\n    import c\nexcept ImportError:\n    pass\n",
        a="def f(:\n",
        b="import half_a_library\nimport not_there_at_all\n",
        c="def f(:\n",
    )
    lacks = "the image lacks what the program imports: not_there_at_all (b.py:2)"
    (first, syntax), _ = examined(folder, "main", "half_a_library", "not_there_at_all")
    assert (first, syntax[:7]) == (lacks, "a.py:1:")
    message = "b.py:1: import half_a_library: OSError: libx.so.1: cannot open"
    assert examined(folder, "main")[0][2:] == [message]
    (lacks,), _ = examined(written(tmp_path / "app", main="import alone\n"), "main")
    assert lacks == "the image lacks what the program imports: lacks (main.py:1: alone)"


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
        (problem,) = imports.examine(program, "train")["problems"]  # type: ignore[misc, attr-defined]
    finally:
        sys.path.remove(str(package.parent))
    assert "undefined symbol: _ZN5torch3jit" in problem["message"]
    assert problem["fix"].startswith("wordreels is there")
