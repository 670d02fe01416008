"""The JSON Schema of image.yaml, with which editors check and complete it."""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from builder.config.fields import NEWEST, AcceptedAdvisory
from builder.config.image_yaml import ImageSpec
from builder.facts import accelerators, cuda, frameworks


def schema() -> dict[str, Any]:
    result = ImageSpec.model_json_schema()
    _describe(ImageSpec, result)
    _describe(AcceptedAdvisory, result["$defs"][AcceptedAdvisory.__name__])
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    every = accelerators.accelerators().values()
    fields = {
        key: dict(result["properties"][ImageSpec.field_of(key)]) for key in ImageSpec.file_keys()
    }
    result["properties"] = fields
    fields["accelerator"]["enum"] = [
        accelerator.name for accelerator in every if not accelerator.refused
    ]
    for name in frameworks.OWN:
        framework = frameworks.of(name)
        fields[name]["description"] = (
            f"The release of {framework.title}. {fields[name]['description']}"
        )
        fields[name]["title"] = framework.title
        known = framework.releases()
        minors = dict.fromkeys(map(frameworks.minor, known))
        fields[name]["examples"] = [[*minors][-1], known[-1], NEWEST]
        if name != frameworks.DEFAULT:
            del fields[name]["default"]
        del fields[name]["type"]  # 2.21 without quotes is the text 2.21 to us
        texts = {"type": "string", "enum": [NEWEST, *minors, *known]}
        labelled = {"type": "string", "pattern": r"^[0-9.]+\+cu[0-9]+$"}
        others = [labelled] if framework.labelled else []
        fields[name]["anyOf"] = [texts, *others, {"type": "number"}]
    fields["prune"] = {
        key: value for key, value in fields["prune"].items() if key not in ("anyOf", "default")
    }
    fields["prune"]["enum"] = ["off", *frameworks.OWN, "all"]
    fields["python"]["type"] = ["string", "number"]  # 3.11 without quotes is the text 3.11 to us
    fields["cuda"]["propertyNames"] = {"enum": list(cuda.cuda().packages)}
    for name in ("environment", "labels"):
        fields[name]["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    return result


def _describe(model: type[BaseModel], schema: dict[str, Any]) -> None:
    """Put the text below each field of a model into its schema.

    Pydantic can do that, but it would read the source whenever the module is loaded.
    """
    (body,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    for field, text in pairwise(body.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                described = schema["properties"][name] | {"description": inspect.cleandoc(words)}
                schema["properties"][name] = dict(sorted(described.items()))


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
