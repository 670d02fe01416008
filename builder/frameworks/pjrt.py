"""XLA for a GPU that is not here: the plugin of PJRT alone, without a framework and a driver.

It calls PJRT's C interface (xla/pjrt/c/pjrt_c_api.h, 0.90). There, a function keeps its place, and
a structure grows at its end. It is copied into a container beside a hook of the check `compile`.
"""

from __future__ import annotations

import ctypes
from typing import Any

Pointer, Size, Text, Long = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int64

_FUNCTIONS = 40
"""Bytes of PJRT_Api before its first function: a size, a pointer, PJRT_Api_Version."""
_MESSAGE, _CODE, _INITIALIZE, _OPTIMIZED, _TOPOLOGY, _COMPILE, _MEMORY = 1, 2, 3, 48, 82, 89, 96
"""Places of functions."""
_CODES = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED"}
_SIZES = ("code", "arguments", "outputs", "aliased", "temporaries")
"""The first numbers of PJRT_Executable_GetCompiledMemoryStats_Args: bytes on the device."""


class PjrtError(Exception):
    """What XLA says, after the name of its status where the program is to blame."""


def _structure(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """Return a structure of PJRT's, each of which begins with its size and a pointer."""
    members = [("struct_size", Size), ("extension", Pointer), *fields]
    return type("Arguments", (ctypes.Structure,), {"_fields_": members})


_VALUE = _structure(
    ("name", Text), ("name_size", Size), ("type", ctypes.c_int), ("text", Text), ("size", Size)
)
_PROGRAM = _structure(
    ("code", Pointer), ("code_size", Size), ("format", Text), ("format_size", Size)
)


def _made(kind: type[ctypes.Structure], **values: Any) -> Any:
    return kind(struct_size=ctypes.sizeof(kind), **values)


class Compiler:
    """XLA's compiler for one GPU by its description."""

    def __init__(self, plugin: str, target: str, options: dict[str, str]) -> None:
        """plugin: its file. target: GpuTargetConfigProto as text. options: XLA's flags."""
        get = ctypes.CDLL(plugin).GetPjrtApi
        get.restype = Pointer
        self.api = get()
        self.options = options
        self._call(_INITIALIZE)
        given = (("target_config", target.encode()), ("topology", b"1x1x1"))
        values = (_VALUE * len(given))(
            *(
                _made(_VALUE, name=name.encode(), name_size=len(name), text=text, size=len(text))
                for name, text in given
            )
        )
        self.topology = self._call(
            _TOPOLOGY,
            ("name", Text, b"1x1x1"),
            ("name_size", Size, 5),
            ("options", Pointer, ctypes.addressof(values)),
            ("count", Size, len(given)),
            ("topology", Pointer, None),
        ).topology

    def compile(self, module: bytes) -> tuple[dict[str, int], bytes]:
        """Compile a serialized HloModuleProto. Return the bytes that it needs of the device, and
        the module that the device would run. Raises PjrtError."""
        code = ctypes.create_string_buffer(module, len(module))
        program = _made(
            _PROGRAM, code=ctypes.addressof(code), code_size=len(module), format=b"hlo",
            format_size=3,
        )  # fmt: skip
        options = compile_options(self.options)
        executable = self._call(
            _COMPILE,
            ("topology", Pointer, self.topology),
            ("program", Pointer, ctypes.addressof(program)),
            ("options", Text, options),
            ("options_size", Size, len(options)),
            ("client", Pointer, None),
            ("executable", Pointer, None),
        ).executable
        more = [(f"more{number}", Long, 0) for number in range(7)]
        sizes = [(name, Long, 0) for name in _SIZES]
        found = self._call(_MEMORY, ("executable", Pointer, executable), *sizes, *more)
        return {name: getattr(found, name) for name in _SIZES}, self._optimized(executable)

    def _optimized(self, executable: int) -> bytes:
        """Return the module of an executable: the first field of an HloModuleProtoWithConfig."""
        program = _made(_PROGRAM)
        given = ("executable", Pointer, executable), ("out", Pointer, ctypes.addressof(program))
        self._call(_OPTIMIZED, *given)
        code = ctypes.create_string_buffer(program.code_size)
        program.code = ctypes.addressof(code)
        self._call(_OPTIMIZED, *given)
        return bytes(Message(code.raw).fields[1][0])

    def _call(self, place: int, *given: tuple[str, Any, Any]) -> Any:
        """Call a function with (name, type, value), and return the structure as it left it."""
        kind = _structure(*((name, type_) for name, type_, _ in given))
        arguments = _made(kind, **{name: value for name, _, value in given})
        if error := self._at(place, Pointer)(ctypes.byref(arguments)):
            raise PjrtError(self._words(error))
        return arguments

    def _at(self, place: int, result: Any) -> Any:
        address = Size.from_address(self.api + _FUNCTIONS + 8 * place).value
        return ctypes.CFUNCTYPE(result, Pointer)(address)

    def _words(self, error: int) -> str:
        kind = _structure(("error", Pointer), ("text", Pointer), ("size", Size))
        message, code = _made(kind, error=error), _made(kind, error=error)
        self._at(_MESSAGE, None)(ctypes.byref(message))
        self._at(_CODE, Pointer)(ctypes.byref(code))  # its enumeration lies where `text` does
        text = ctypes.string_at(message.text, message.size).decode(errors="replace")
        status = _CODES.get((code.text or 0) & 0xFFFFFFFF, "")
        return f"{status}: {text}" if status and not text.startswith(status) else text


def compile_options(flags: dict[str, str]) -> bytes:
    """Return a CompileOptionsProto (xla/pjrt/proto/compile_options.proto) for one device."""
    assignment = b"\x08\x01\x10\x01" + _field(3, _field(1, b"\x00"))  # one replica, on device 0
    ordinal = b"\x08" + b"\xff" * 9 + b"\x01"  # -1
    build = ordinal + b"\x20\x01\x28\x01" + _field(9, assignment)  # one replica, one partition
    overrides = (
        _field(7, _field(1, name.encode()) + _field(2, _field(1, value.encode())))
        for name, value in flags.items()
    )
    return _field(3, build) + b"".join(overrides)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer that holds bytes."""
    size, prefix = len(content), bytearray([number << 3 | 2])
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    return bytes(prefix) + bytes([size]) + content


class Message:
    """A serialized message of a protocol buffer: its fields by their numbers."""

    def __init__(self, content: Any = b"") -> None:
        self.fields: dict[int, list[Any]] = {}
        at, content = 0, memoryview(content)
        while at < len(content):
            key, at = _number(content, at)
            if key & 7 == 0:
                value, at = _number(content, at)
            else:
                size, at = _number(content, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
                value, at = content[at : at + size], at + size
            self.fields.setdefault(key >> 3, []).append(value)

    def each(self, field: int) -> list[Message]:
        return [Message(content) for content in self.fields.get(field, ())]

    def one(self, field: int) -> Message:
        """Return a message; one without fields where it is not there."""
        return (self.each(field) or [Message()])[0]

    def text(self, field: int) -> str:
        return bytes(self.fields.get(field, [b""])[0]).decode(errors="replace")

    def number(self, field: int) -> int:
        """Return a whole number; 0, which is not written, where it is not there."""
        return int(self.fields.get(field, [0])[0])

    def numbers(self, field: int) -> tuple[int, ...]:
        """Return numbers, which are written each for itself or all together."""
        found: list[int] = []
        for value in self.fields.get(field, ()):
            at = 0
            while not isinstance(value, int) and at < len(value):
                number, at = _number(value, at)
                found.append(number)
            found += [value] if isinstance(value, int) else []
        return tuple(found)


def _number(content: Any, at: int) -> tuple[int, int]:
    """Return the number that begins there, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value - (1 << 64) if value >> 63 else value, at
