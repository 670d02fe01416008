"""The proof of an image that anybody made, from its layers: nothing of it runs.

The checks are those of a smoke run where they need no container, and a few that the images of the
factory need not be asked. What an image does not have is said, and not guessed. What most images of
others have, and many of them with reason, is a finding: it refuses an image of the factory alone.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from builder import __version__
from builder.devicecode import linking
from builder.image.plan import HOOK
from builder.prove.audit import Gpu
from builder.prove.checks import (
    combinations,
    contents,
    device_code,
    driver,
    environment,
    machine,
    permissions,
)
from builder.prove.image import Image, NotThereError
from builder.prove.receipts import Defect, Finding, failure
from builder.prove.report import annotation
from builder.prove.suite import Answer, Rule
from builder.prove.waste import Waste

Status = Literal["passed", "refused", "not there"]

_KNOWN_HOOKS: Final = re.compile(
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = [^;]*; "
    r"enabled and __import__\('_distutils_hack'\)(\.add_shim\(\))?;? *"
    r"|import os; exec\('try: __import__\(\"coloredlogs\"\)\.auto_install\(\) if os\.environ\.get\("
    r"\"COLOREDLOGS_AUTO_INSTALL\"\) else None\\nexcept ImportError: pass'\)"
    r"|import _virtualenv|import _cuda_bindings_redirector|import (\w+); \2\.install\(\)"
    r"|import sys, types, os;has_mfs = (?!.*(exec|eval|open|system|base64|subprocess|urllib)).*"
    rf"|import {HOOK}; {HOOK}\.announce\(\"\d+\.\d\"\)"
)
"""Lines of setuptools, coloredlogs (ONNX Runtime's), virtualenv, cuda-bindings, editable installs,
namespaces, and pruned images of the factory (builder/devicecode/pruning/announce.py)."""
_MODULE: Final = re.compile(
    r"/(site|dist)-packages/(.*(\.cpython-3\d+-x86_64-linux-gnu|\.abi3|/_pywrap_[a-z_]+)"
    r"|jaxlib/[\w/]+|jax_plugins/\w+/\w+|jax_\w+_plugin/\w+)\.so$"
)
"""A module that Python imports, or a plugin that it opens."""


@dataclass(frozen=True)
class Result:
    """What one check says. note: what was seen, or why there was nothing to look at. findings: what
    is worth a change, and no reason to refuse the image."""

    check: str
    status: Status
    problems: tuple[Defect, ...] = ()
    note: str = ""
    findings: tuple[Defect, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return asdict(self)


def prove(image: Image) -> tuple[Result, ...]:
    """Return what each check says."""
    return tuple(_result(name, rule, image) for name, rule in CHECKS.items())


def _result(name: str, rule: Rule, image: Image) -> Result:
    try:
        defects, seen = rule(image)
    except NotThereError as reason:
        return Result(name, "not there", note=str(reason))
    findings = tuple(d for d in defects if isinstance(d, Finding) and not image.is_ours)
    problems = tuple(defect for defect in defects if defect not in findings)
    note = str(seen.get("note", ""))
    return Result(name, "refused" if problems else "passed", problems, note, findings)


# --- the checks that images of the factory have others for ----------------------------------------


def _loader(image: Image) -> Answer:
    """Look for each library that a framework is linked to, and that it opens by name. Which one
    ld.so takes, a run shows."""
    modules = [library for library in image.content.libraries if _MODULE.search(library.path)]
    if not modules and not image.frameworks:
        raise NotThereError("no compiled module of Python")
    by_name = {library.name: library for library in image.content.libraries}
    names = {posixpath.basename(path) for path in image.tree.files if image.tree.resolve(path)}
    defects: list[Defect] = []
    for module in modules:
        lacking = linking.missing(module, by_name, names)
        if lacking:
            needs = "; ".join(f"{asking.name} needs {name}" for name, asking in lacking.items())
            of_framework = any(image.is_module(module.path, each) for each in image.frameworks)
            kind = Defect if of_framework else Finding
            defects.append(
                kind(
                    f"{module.path} cannot be loaded: {needs}, and the image lacks it",
                    "install what brings it (apt-file search), or take the package out",
                )
            )
    loaded = len(modules) - len(defects)
    defects += _opened(image) if image.gpu else []
    note = f"{loaded} modules find what they are linked to; ld.so's way was not followed"
    return defects, {"note": note}


def _opened(image: Image) -> list[Defect]:
    """Beside a framework that uses the GPU, another one may feed it from the CPU."""

    def is_there(name: str) -> bool:
        return any(image.tree.resolve(path) for path in image.tree.named(name))

    said = [list(each.opened(image.content.libraries, is_there)) for each in image.frameworks]
    one_works = any(all(isinstance(defect, Finding) for defect in each) for each in said)
    return [Finding(**asdict(defect)) if one_works else defect for each in said for defect in each]


def _entry_point(image: Image) -> Answer:
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


def _hooks(image: Image) -> Answer:
    hooks = image.tree.hooks
    defects = []
    for path, line in sorted(hooks.items()):
        unknown = [each for each in line.splitlines() if not _KNOWN_HOOKS.fullmatch(each.strip())]
        if unknown:
            defects.append(
                Defect(
                    f"{path} runs code at every start of Python: {unknown[0][:200]}",
                    "remove it, or the package that brings it",
                )
            )
    note = f"{len(hooks)} known .pth hooks" if hooks else "no .pth file runs code"
    return defects, {"note": note}


CHECKS: Final[Mapping[str, Rule]] = {
    "device-code": device_code.run,
    "combinations": combinations.run,
    "loader": _loader,
    "environment": environment.of_image,
    "machine": machine.of_config,
    "certificates": machine.certificates,
    "entry-point": _entry_point,
    "permissions": permissions.run,
    "driver": driver.run,
    "secrets": contents.secrets,
    "pth": _hooks,
}


# --- the result -----------------------------------------------------------------------------------


def require(name: str, results: Sequence[Result]) -> None:
    """Raise CheckFailed where a check refused the image."""
    problems = [problem for result in results for problem in result.problems]
    if problems:
        raise failure(name, problems)


def lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield the results for people."""
    for result in results:
        yield f"{result.check:<13} {result.status:<9} {result.note}".rstrip()
        for problem in result.problems:
            yield f"    {problem.message}"
            yield f"    fix: {problem.fix}"
        for finding in result.findings:
            yield f"    finding: {finding.message}"
            yield f"    instead: {finding.fix}"


def as_dict(
    image: str, gpu: Gpu | None, results: Sequence[Result], wasted: Sequence[Waste]
) -> dict[str, Any]:
    """Return the results as JSON-ready data."""
    checks, saved = [result.as_dict() for result in results], list(map(asdict, wasted))
    return {"image": image, "gpu": gpu and gpu.name, "checks": checks, "could_be_saved": saved}


def github_lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield the results as GitHub's annotations: an error for each problem, a warning for each
    finding."""
    for result, level, defect in _levels(results):
        yield annotation(level, f"{defect.message}; {defect.fix}", title=result.check)


def sarif(image: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the results as SARIF 2.1.0, which code scanning reads."""
    place = {"physicalLocation": {"artifactLocation": {"uri": image}}}
    rows = [
        {
            "ruleId": result.check,
            "level": level,
            "message": {"text": f"{defect.message}; {defect.fix}"},
            "locations": [place],
        }
        for result, level, defect in _levels(results)
    ]
    rules = [{"id": result.check} for result in results]
    driver = {"name": "builder prove", "version": __version__, "rules": rules}
    return {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": rows}]}


def _levels(results: Sequence[Result]) -> Iterator[tuple[Result, str, Defect]]:
    for result in results:
        for level, defects in (("error", result.problems), ("warning", result.findings)):
            yield from ((result, level, defect) for defect in defects)
