"""Opening libraries, in a process of its own: if one crashes it, the crash has a name."""

# The paths here are text, from ELF headers, /proc/self/maps and ld.so.cache
# ruff: noqa: PTH100, PTH119, PTH120, PTH123
from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Json = dict[str, Any]
    Version = tuple[int, ...]


def _ask(handle: ctypes.CDLL, how: str) -> Version:
    """Ask a library's own function for its version.

    how: the kind, the function, and the base. int, size: one number, X * base + Y * 100 + Z (cudart
    has no Z, and Y * 10). property: three calls, one a number. pair: two pointers.
    """
    kind, function, *base = how.split()
    call = getattr(handle, function)
    if kind == "property":
        numbers = []
        for part in range(3):
            value = ctypes.c_int(-1)
            call(part, ctypes.byref(value))
            numbers.append(value.value)
        return tuple(numbers)
    if kind == "pair":
        major, minor = ctypes.c_int(-1), ctypes.c_int(-1)
        call(ctypes.byref(major), ctypes.byref(minor))
        return (major.value, minor.value)
    if kind == "size":
        call.restype = ctypes.c_size_t
        number = int(call())
    else:
        out = ctypes.c_int(-1)
        call(ctypes.byref(out))
        number = out.value
    if base[0] == "1000" and function.startswith("cuda"):
        return (number // 1000, number % 1000 // 10)
    return (number // int(base[0]), number % int(base[0]) // 100, number % 100)


def open_all(libraries: list[list[str]]) -> None:
    """Open libraries one after the other, as TensorFlow would, and print two lines for each.

    wanted: [soname, path, how to ask for the version (see `_ask`)] of each.
    """
    for name, path, how in libraries:
        print(json.dumps({"opening": name}), flush=True)
        answer: Json = {"soname": name}
        try:
            handle = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            if how:
                answer["version"] = _ask(handle, how)
        except (OSError, AttributeError) as error:
            answer["error"] = str(error)
        print(json.dumps(answer), flush=True)
    print(json.dumps({"mapped": _mapped()}), flush=True)


def ask_tensorflow(framework: str, handles: dict[str, str]) -> None:
    """Let TensorFlow's own code open each library, and print which files are mapped then."""
    library = ctypes.CDLL(framework, mode=ctypes.RTLD_GLOBAL)
    status = ctypes.create_string_buffer(64)  # an absl::StatusOr, returned through a pointer
    opened = []
    for name, handle in handles.items():
        symbol = f"Get{handle}DsoHandle"
        function = getattr(library, f"_ZN3tsl8internal9DsoLoader{len(symbol)}{symbol}Ev", None)
        if function is not None:
            function.restype = ctypes.c_void_p
            function(status)
            opened.append(name)
    print(json.dumps({"asked": opened, "mapped": _mapped()}), flush=True)


def compile_kernel(nvrtc: str, capability: str) -> None:
    """Let NVRTC compile a kernel for a compute capability, and print its error ("" for none)."""
    library = ctypes.CDLL(nvrtc)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = b'extern "C" __global__ void f(float *x) { x[threadIdx.x] = sinf(x[0]); }'
    architecture = f"--gpu-architecture=sm_{capability.replace('.', '')}".encode()
    library.nvrtcCreateProgram(ctypes.byref(program), source, b"f.cu", 0, None, None)
    code = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(architecture))
    error = ""
    if code:
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value + 1)
        library.nvrtcGetProgramLog(program, log)
        error = f"code {code} {' '.join(log.value.decode(errors='replace').split())[:300]}".strip()
    print(json.dumps({"error": error}), flush=True)


def _mapped() -> dict[str, list[str]]:
    """Return file name -> the files of this name that are mapped into this process."""
    files: dict[str, list[str]] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if path[1]:
                real = os.path.realpath("/" + path[2])
                known = files.setdefault(os.path.basename(path[2]), [])
                if real not in known:
                    known.append(real)
    return files


def in_child(mode: str, *arguments: str) -> tuple[list[Json], str]:
    """Run this program once more, as a child: the JSON lines it printed, and how it died, if so."""
    done = subprocess.run(
        [sys.executable, "-B", os.path.dirname(os.path.abspath(__file__)), mode, *arguments],
        capture_output=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    if done.returncode == 0:
        return lines, ""
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    return lines, f"{how} {last}".strip()
