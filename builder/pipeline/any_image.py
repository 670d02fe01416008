"""The static proof of an image that anybody made: read from its layers, and nothing of it runs.

The questions are those of a smoke run's checks, and so are the rules where they need no container.
What an image does not have is said, and not guessed. What most images of others have, and many of
them with reason, is a finding: it refuses an image of the factory alone.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from builder import __version__
from builder.core.errors import CheckFailed
from builder.devicecode import linking
from builder.devicecode.images import ImageContent
from builder.devicecode.tree import Tree
from builder.devicecode.verdict import Audit, Support
from builder.facts.accelerators import Kind
from builder.frameworks.tensorflow import releases
from builder.frameworks.tensorflow.probes.loader.gpu import DRIVER_LIBRARIES
from builder.frameworks.tensorflow.probes.loader.libraries import (
    NUMBERS,
    libraries,
    parse_version,
    soname,
)
from builder.pipeline.verify import ACCELERATOR
from builder.prove.audit import Gpu, instead, passes
from builder.prove.checks import contents, environment, machine
from builder.prove.probes.permissions import SET_ID, listed
from builder.prove.receipts import Defect
from builder.prove.report import escaped
from builder.registry import manifests

Status = Literal["passed", "refused", "not there"]

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where runc looks for a program where the image sets no PATH."""
_BUNDLES: Final = (machine.AUTHORITIES, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Certificates of Debian, of Fedora, of Alpine."""
_KNOWN_HOOKS: Final = re.compile(
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = [^;]*; "
    r"enabled and __import__\('_distutils_hack'\)(\.add_shim\(\))?;? *"
    r"|import _virtualenv|import (\w+); \2\.install\(\)"
    r"|import sys, types, os;has_mfs = (?!.*(exec|eval|open|system|base64|subprocess|urllib)).*"
)
"""Lines of setuptools, of virtualenv, of editable installs and of namespace packages."""


@dataclass(frozen=True)
class Answer:
    """What one check says. note: what was seen, or why there was nothing to look at. findings: what
    is worth a change, and no reason to refuse the image."""

    check: str
    status: Status
    problems: tuple[Defect, ...] = ()
    note: str = ""
    findings: tuple[Defect, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        problems = [problem.model_dump() for problem in self.problems]
        findings = [finding.model_dump() for finding in self.findings]
        return {**vars(self), "problems": problems, "findings": findings}


class Finding(Defect):
    """A defect that does not refuse an image that others made."""


@dataclass(frozen=True)
class Image:
    """An image that was read, and the GPU that it is judged for, None for the CPU."""

    content: ImageContent
    gpu: Gpu | None = None

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.content.layers)

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.content.configuration.get("config") or {}
        return config

    @property
    def environment(self) -> Mapping[str, str]:
        return manifests.environment(self.config)

    @property
    def ours(self) -> bool:
        """Whether the factory made it."""
        return ACCELERATOR in (self.config.get("Labels") or {})

    @property
    def kind(self) -> Kind:
        return "gpu" if self.gpu else "cpu"

    @property
    def tensorflow(self) -> str:
        """The version of TensorFlow in it, "" for none."""
        named = (lib for lib in self.content.libraries if lib.package.startswith("tensorflow"))
        return next((lib.version for lib in named if "_framework.so" in lib.name), "")


class _NotThereError(Exception):
    """A check has nothing to look at; its text says why."""


def prove(image: Image) -> tuple[Answer, ...]:
    """Return what each check says."""
    return tuple(_answer(name, check, image) for name, check in CHECKS.items())


def require(name: str, answers: Sequence[Answer]) -> None:
    """Raise CheckFailed where a check refused the image."""
    problems = [problem for answer in answers for problem in answer.problems]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckFailed(f"{name}: {problems[0].message}{more}", problems[0].fix)


def lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the answers for people."""
    for answer in answers:
        yield f"{answer.check:<13} {answer.status:<9} {answer.note}".rstrip()
        for problem in answer.problems:
            yield f"    {problem.message}"
            yield f"    fix: {problem.fix}"
        for finding in answer.findings:
            yield f"    finding: {finding.message}"
            yield f"    instead: {finding.fix}"


def github_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the workflow commands by which GitHub shows each problem as an annotation."""
    for answer in answers:
        for problem in answer.problems:
            yield f"::error title={answer.check}::{escaped(f'{problem.message}; {problem.fix}')}"
        for finding in answer.findings:
            yield f"::warning title={answer.check}::{escaped(f'{finding.message}; {finding.fix}')}"


def sarif(image: str, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the answers as SARIF 2.1.0, which code scanning reads."""
    place = {"physicalLocation": {"artifactLocation": {"uri": image}}}
    rows = [
        {
            "ruleId": answer.check,
            "level": level,
            "message": {"text": f"{defect.message}; {defect.fix}"},
            "locations": [place],
        }
        for answer in answers
        for level, defects in (("error", answer.problems), ("warning", answer.findings))
        for defect in defects
    ]
    rules = [{"id": answer.check} for answer in answers]
    driver = {"name": "builder prove", "version": __version__, "rules": rules}
    return {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": rows}]}


def _answer(name: str, check: Check, image: Image) -> Answer:
    notes: list[str] = []
    try:
        defects = tuple(check(image, notes.append))
    except _NotThereError as reason:
        return Answer(name, "not there", note=str(reason))
    findings = tuple(defect for defect in defects if isinstance(defect, Finding) and not image.ours)
    problems = tuple(defect for defect in defects if defect not in findings)
    status: Status = "refused" if problems else "passed"
    return Answer(name, status, problems, "; ".join(notes), findings)


Check = Callable[[Image, Callable[[str], None]], Iterator[Defect]]


def _device_code(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    if image.gpu is None:
        raise _NotThereError("no GPU is named (--gpu)")
    verdict = Audit(image.content.libraries).verdict(image.gpu.capability)
    if not passes(verdict, allow_ptx=True):
        message = f"{image.gpu.name} {verdict}"
        yield Defect(message=message, fix=instead(verdict))
        return
    driver = f"; driver {verdict.driver.driver} or newer" if verdict.driver else ""
    slow = verdict.status == Support.PTX
    compiles = f", up to {verdict.ptx_seconds:.0f} s when first used" if slow else ""
    note(f"{image.gpu.name} {verdict}{compiles}{driver}")


def _loader(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    """Look for each library that a framework is linked to, and that TensorFlow opens by name. Which
    one ld.so takes, a run shows."""
    modules = [library for library in image.content.libraries if _MODULE.search(library.path)]
    if not modules and not image.tensorflow:
        raise _NotThereError("no compiled module of Python")
    by_name = {library.name: library for library in image.content.libraries}
    names = {posixpath.basename(path) for path in image.tree.files if image.tree.resolve(path)}
    loaded = len(modules)
    for module in modules:
        kind = Defect if _FRAMEWORK.search(module.path) else Finding
        lacking = linking.missing(module, by_name, names)
        if lacking:
            loaded -= 1
            needs = "; ".join(f"{asking.name} needs {name}" for name, asking in lacking.items())
            yield kind(
                message=f"{module.path} cannot be loaded: {needs}, and the image lacks it",
                fix="install what brings it (apt-file search), or take the package out",
            )
    if image.gpu and image.tensorflow:
        yield from _opened(image)
    note(f"{loaded} modules find what they are linked to; ld.so's way was not followed")


_MODULE: Final = re.compile(
    r"/(site|dist)-packages/.*(\.cpython-3\d+-x86_64-linux-gnu|\.abi3|/_pywrap_[a-z_]+|/_jax|/xla_extension)\.so$"
)
"""A module that Python imports."""
_FRAMEWORK: Final = re.compile(
    r"-packages/(torch/_C\.|jaxlib/(_jax|xla_extension)\.|tensorflow/python/_pywrap_tensorflow_internal\.)"
)
"""The modules without which `import torch`, `jax` or `tensorflow` fails."""


def _opened(image: Image) -> Iterator[Defect]:
    """Judge what TensorFlow opens by name, to which it is not linked."""
    minor = ".".join(image.tensorflow.split(".")[:2])
    rows = (row for row in releases.tables().releases if row.minor == minor)
    release = next(rows, None)
    if any(library.package == "tensorflow-cpu" for library in image.content.libraries):
        yield Defect(message="tensorflow-cpu uses no GPU", fix="install tensorflow in its place")
        return
    if release is None or parse_version(release.cuda)[0] not in NUMBERS:
        known = releases.tables().releases[-1].minor
        yield Finding(
            message=f"what TensorFlow {image.tensorflow} opens on a GPU is not known",
            fix=f"take a release that the tables have, such as {known}",
        )
        return
    cuda, cudnn = parse_version(release.cuda), parse_version(release.cudnn)[0]
    for library in libraries(cuda[0], cudnn):
        name = soname(library, cuda, cudnn)
        if not any(image.tree.resolve(path) for path in image.tree.named(name)):
            yield Defect(
                message=f"TensorFlow {image.tensorflow} opens {name}, which is not in the image: "
                f"{library.without}",
                fix=f"install nvidia-{library.package}-cu{cuda[0]}, or take a base with CUDA "
                f"{release.cuda} and cuDNN {release.cudnn}",
            )


def _environment(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    yield from environment.judge(image.environment, image.kind)
    for path, message in environment.paths(image.environment, image.kind).items():
        if image.tree.resolve(path) is None:
            yield Defect(message=message, fix="take the variable out, or put the file in")
    note(f"{len(image.environment)} variables")


def _machine(image: Image, _: Callable[[str], None]) -> Iterator[Defect]:
    """Ask what a smoke run asks. Where others start it, a name is resolved, and a hook of the
    container toolkit says where the driver is."""
    elsewhere = tuple(machine.of_the_factory(image.config, image.kind))
    for defect in machine.judge(image.config, image.kind):
        yield Finding(**dict(defect)) if defect in elsewhere else defect


def _certificates(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    needed = machine.certificates(image.environment)
    there = [path for path in _BUNDLES if image.tree.resolve(path)]
    if not (there or image.tensorflow or image.environment.get("SSL_CERT_FILE")):
        raise _NotThereError(f"no {', '.join(_BUNDLES)}: its program may bring its own")
    if there and not image.tensorflow:  # other programs know their distribution's place
        needed.pop(machine.AUTHORITIES, None)
    for path, message in needed.items():
        if image.tree.resolve(path) is None:
            kind = Finding if path == machine.AUTHORITIES else Defect
            yield kind(message=message, fix="install ca-certificates, or correct the variable")
    note(", ".join(there))


def _entry_point(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    command = [*(image.config.get("Entrypoint") or ()), *(image.config.get("Cmd") or ())]
    if not command:
        raise _NotThereError("the image names no command: whoever starts it has to")
    search = image.environment.get("PATH") or _PATH
    folder = str(image.config.get("WorkingDir") or "/")
    program = image.tree.program(str(command[0]), search, folder)
    if program is None:
        where = "" if "/" in command[0] else f" in PATH ({search})"
        yield Defect(
            message=f"the image starts {command[0]}, which is not there{where}",
            fix="correct ENTRYPOINT or CMD, or install the program",
        )
    elif not image.tree.files[program].mode & 0o111:
        yield Defect(message=f"{program} may not be executed", fix=f"chmod +x {program}")
    note(shlex.join(map(str, command))[:200])


def _permissions(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    user, _, group = str(image.config.get("User") or "").partition(":")
    if user in ("", "0", "root"):
        yield Finding(
            message="the image runs as root: its outputs would belong to root",
            fix="end the Dockerfile with USER 1000:1000",
        )
    files = image.tree.files
    rising = [
        path
        for path, entry in files.items()
        if entry.mode & 0o6000 and entry.mode & 0o111 and not _of_system(path, _SET_ID)
    ]
    capable = [
        path
        for path, entry in files.items()
        if entry.capable and not _of_system(path, frozenset() if image.ours else _CAPABLE)
    ]
    if rising := sorted({*rising, *capable}):
        yield Defect(
            message=f"programs that run with another user's rights: {listed(rising)}",
            fix="take the bit away (chmod u-s,g-s), the capability (setcap -r), or the program",
        )
    searched = (image.environment.get("PATH") or _PATH).split(":")
    writable = sorted(
        path
        for path, entry in files.items()
        if entry.mode & 0o002
        and not entry.link
        and (posixpath.dirname(path) in searched or _RUN.search(path))
    )
    if writable:
        yield Defect(
            message=f"everybody may write to what the image runs: {listed(writable)}",
            fix="chmod o-w",
        )
    gid = int(group) if group.isdigit() else -1
    own = [
        path
        for path in _accounts(image)
        if user.isdigit()
        and user != "0"
        and (
            files[path].uid == int(user)
            or files[path].mode & 0o002
            or (files[path].mode & 0o020 and files[path].gid == gid)
        )
    ]
    if own:
        yield Defect(
            message=f"the image's user {user} can change accounts or the loader: {listed(own)}",
            fix="let root own them (chown root, chmod go-w)",
        )
    note(f"USER {user or 'root'}")


_RUN: Final = re.compile(r"/(site|dist)-packages/.*\.(pyc?|pth|so[.\d]*)$")
"""What Python runs; a lock that uv leaves there is not run."""
_OTHERS: Final = """
bbsuid dbus-daemon-launch-helper grub2-set-bootflag krb5_child ldap_child locate lockdev mlocate
pam_timestamp_check plocate proxy_child selinux_child slocate unix_update userhelper usernetctl
"""
_SET_ID: Final = SET_ID | frozenset(_OTHERS.split())
"""Programs that Debian, Fedora, Red Hat and Alpine install with a set-user-ID or set-group-ID
bit."""
_CAPABLE: Final = frozenset(
    {"arping", "clockdiff", "mtr-packet", "newgidmap", "newuidmap", "ping", "traceroute6.iputils"}
)
"""Programs that distributions install with a capability."""


def _of_system(path: str, names: frozenset[str]) -> bool:
    """Tell whether a file lies where a distribution installs, and has one of these names."""
    system = re.match(r"/(usr/)?(s?bin|lib(64|exec)?)/", path)
    return bool(system) and posixpath.basename(path) in names


def _accounts(image: Image) -> list[str]:
    """Return the files by which whoever may change them becomes root."""
    names = ("/etc/passwd", "/etc/shadow", "/etc/group", "/etc/sudoers", "/etc/ld.so.preload")
    loader = re.compile(r"/etc/ld\.so\.(conf|cache|conf\.d/.*)$")
    return [path for path in image.tree.files if path in names or loader.match(path)]


def _driver(image: Image, _: Callable[[str], None]) -> Iterator[Defect]:
    names = ("libcuda.so", *DRIVER_LIBRARIES)
    remnants = sorted(
        path
        for path in image.tree.files
        if posixpath.basename(path).startswith(names)
        and not {"stubs", "compat"} & set(path.split("/"))
        and "/cuda_compat" not in path
    )
    if remnants:
        yield Defect(
            message=f"the image holds libraries of the driver: {listed(remnants)}; the machine's "
            "are mounted, and these are in their way or do not fit its kernel module",
            fix="remove the driver's packages (libcuda1, libnvidia-*, nvidia-utils)",
        )


def _secrets(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    history = manifests.history(image.content.configuration, every=True)
    yield from contents.in_texts(image.config, history)
    for secret in image.content.secrets:
        yield Defect(
            message=str(secret),
            fix="a layer keeps what a later one deletes: build it again without it, and revoke it",
        )
    note(f"{len(image.content.layers)} layers")


def _hooks(image: Image, note: Callable[[str], None]) -> Iterator[Defect]:
    hooks = image.tree.hooks
    for path, line in sorted(hooks.items()):
        unknown = [each for each in line.splitlines() if not _KNOWN_HOOKS.fullmatch(each.strip())]
        if unknown:
            yield Defect(
                message=f"{path} runs code at every start of Python: {unknown[0][:200]}",
                fix="remove it, or the package that brings it",
            )
    note(f"{len(hooks)} known .pth hooks" if hooks else "no .pth file runs code")


CHECKS: Final[Mapping[str, Check]] = {
    "device-code": _device_code,
    "loader": _loader,
    "environment": _environment,
    "machine": _machine,
    "certificates": _certificates,
    "entry-point": _entry_point,
    "permissions": _permissions,
    "driver": _driver,
    "secrets": _secrets,
    "pth": _hooks,
}
