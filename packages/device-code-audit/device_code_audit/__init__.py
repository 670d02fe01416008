"""On which GPUs do CUDA libraries run? The audit of the training image factory, by itself."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from builder.core.events import Event

__version__ = "0.1.0"

_HELP = """\
Exit codes:
  0  every GPU that was named runs every library
  2  the command is wrong: no such file, image or GPU
  3  the outside world refused: a registry, a full disk
  4  a GPU cannot run a library, or a layer of an image holds a secret
"""


def main() -> NoReturn:
    """Run the program. The parts of the factory that it needs lie in this package."""
    sys.path.insert(0, str(Path(__file__).parent / "factory"))
    from builder.core import ending

    ending.run(_audit)


def _audit() -> None:
    from builder.audit import ptxas, report, sources
    from builder.audit.audited import Audited, gpu_named, require
    from builder.core.display import Annotation, line, masked

    chosen = _parser().parse_intermixed_args()
    gpus = tuple(map(gpu_named, chosen.gpu))

    def read(name: str) -> Audited:
        return sources.audited(name, sources.of_name(name, sources.on_machine, _tell), gpus)

    def show(text: str) -> None:
        print(line(text if isinstance(text, Annotation) else masked(text)), flush=True)

    audited = sources.audit(chosen.sources, read, gpus, _tell)
    if chosen.json:
        print(json.dumps([report.as_dict(source) for source in audited], indent=2))
    else:
        for text in (report.github_lines if chosen.github else report.table)(audited):
            show(text)
    if chosen.ptx:
        devices = [gpu.capability for gpu in gpus]
        compiled = ptxas.compile_paths(map(Path, chosen.sources), devices, chosen.ptx, _tell)
        for result in compiled:
            show(str(result))
        ptxas.require(compiled)
    require(audited)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="device-code-audit",
        description="Say which GPUs the libraries of folders, wheels and images have kernels for.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    what = "folders, wheels, libraries, images (registry, engine, docker save, OCI layout)"
    add("sources", nargs="+", metavar="SOURCE", help=what)
    gpu = "a GPU such as V100, or a compute capability such as 7.0; without it, every known one"
    add("--gpu", action="append", default=[], help=gpu)
    ptx = "compile the PTX that they use: a module of each kind, or all"
    add("--ptx", choices=("kinds", "all"), help=ptx)
    add("--github", action="store_true", help="write annotations for GitHub instead of a table")
    add("--json", action="store_true", help="write JSON")
    add("--version", action="version", version=__version__)
    return parser


def _tell(event: Event) -> None:
    """Write on stderr what takes time."""
    from builder.core.display import line, masked
    from builder.core.events import StepLog, StepStarted

    if isinstance(event, StepStarted | StepLog):
        text = event.line if isinstance(event, StepLog) else event.name
        sys.stderr.write(f"  {line(masked(text))}\n")
