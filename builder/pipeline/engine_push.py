"""A push by the engine, of an image that BuildKit built. The engine tries each layer again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from builder import registry
from builder.core.errors import OutsideError
from builder.engine import transfers
from builder.registry import Reference, Registry

if TYPE_CHECKING:
    from builder.engine import Engine


def push(
    engine: Engine,
    image: str,
    to: Reference,
    client: Registry,
    progress: Callable[[int, int], object],
) -> int:
    """Let the engine push an image under a tag; return the bytes that it reports as sent.

    image: a digest or an id that the engine knows. client: of the registry, for its credentials.
    Raises OutsideError where the registry refuses, or stays broken.
    """
    import requests
    from docker.errors import APIError, ImageNotFound

    api, known = engine.client.api, client.credentials
    try:
        api.tag(image, to.name, to.tag)
        login = known.for_engine() if known else {}
        stream = api.push(to.name, tag=to.tag, stream=True, decode=True, auth_config=login)
        return transfers.follow(stream, progress)
    except ImageNotFound:
        raise OutsideError(f"the engine has no image {image}", "build it again") from None
    except (transfers.TransferRefused, APIError, requests.RequestException) as error:
        line = " ".join(str(getattr(error, "explanation", None) or error).split())[:300]
        words = re.sub(r"https?://\S+", "", line)  # an address may contain anything
        status = 401 if re.search("auth", words, re.IGNORECASE) else 0
        raise registry.refused(to, status, line, "write", known) from None
    finally:
        with contextlib.suppress(APIError, requests.RequestException):
            api.remove_image(str(to), noprune=True)
