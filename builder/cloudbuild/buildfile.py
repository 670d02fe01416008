"""A cloudbuild.yaml as the API's message, and the substitutions that it uses.

Google's own JSON reader checks names and types. What else Cloud Build would refuse is found by
`builder cloud validate`, with lines (packages/cloudbuild-local).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from builder.core import filemodel, yamlfile
from builder.core.errors import InputError

if TYPE_CHECKING:
    from google.cloud.devtools.cloudbuild_v1 import Build


def load(path: Path) -> Build:
    """Read a file. Raises InputError for one that cannot be read, or that is not a build."""
    from google.cloud.devtools import cloudbuild_v1
    from google.protobuf import json_format

    fix = f"builder cloud validate {path} names the line"
    message = cloudbuild_v1.Build.pb(cloudbuild_v1.Build())
    try:
        text = path.read_text(encoding="utf-8-sig")
        if problems := yamlfile.parse(text, str(path)).problems:
            raise filemodel.error(str(path), problems)
        value = yaml.safe_load(text) or {}  # YAML 1.1, as gcloud and the service read it
        empty = value.get("substitutions") or {}
        empty.update({name: "" for name, text in empty.items() if text is None})
        json_format.ParseDict(value, message)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "name a cloudbuild.yaml or .json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "name a text file in UTF-8") from None
    except (yaml.YAMLError, json_format.ParseError, AttributeError, TypeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "not a mapping")
        raise InputError(f"{path}: not a build: {reason}", fix) from None
    build: Build = cloudbuild_v1.Build.wrap(message)
    return build


def used(build: Build, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names that a build uses. Under MUST_MATCH the service refuses others."""
    from google.cloud.devtools import cloudbuild_v1

    text = cloudbuild_v1.Build.to_json(build)
    return tuple(name for name in names if re.search(rf"\$\{{?{name}\b", text))


def assignments(options: Iterable[str]) -> dict[str, str]:
    """Return the values of `--substitutions _A=1,_B=2`, read as gcloud does.

    `^:^_A=1,2:_B=3` chooses another separator. Raises InputError.
    """
    values: dict[str, str] = {}
    for text in options:
        custom = re.match(r"\^([^^]+)\^", text)
        parts = text[custom.end() :].split(custom[1]) if custom else text.split(",")
        for part in filter(str.strip, parts):
            name, equals, value = part.partition("=")
            if not equals:
                fix = "write _NAME=VALUE; where a value holds a comma: ^:^_A=1,2:_B=3"
                raise InputError(f"--substitutions: {part!r} has no value", fix)
            values[name.strip()] = value
    return values
