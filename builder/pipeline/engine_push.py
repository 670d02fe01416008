"""A push by the engine, of an image that BuildKit built."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from builder import registry
from builder.core.errors import OutsideError
from builder.core.retry import Retry, TransientError
from builder.engine import transfers
from builder.registry import Reference, Registry

if TYPE_CHECKING:
    from builder.engine import Engine

RETRY: Final = Retry(attempts=4, first=1.0)
"""The engine's own push tries each layer several times before it gives up."""

_FINAL: Final = (
    r"denied|unauthorized|authentication required|no basic auth|forbidden|insufficient.scope"
    r"|quota|immutab|name unknown|x509|certificate|HTTP response to HTTPS|: 4(?:05|13)\b"
)
"""Words of an engine's message that waiting does not change; the engine gives no status."""


def push(
    engine: Engine,
    image: str,
    to: Reference,
    client: Registry,
    retry: Retry = RETRY,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> int:
    """Let the engine push an image under a tag; return the bytes that it reports as sent.

    image: a digest or an id that the engine knows. client: of the registry, for its credentials.
    Raises OutsideError where the registry refuses, or stays broken.
    """
    return retry.run(lambda: _attempt(engine, image, to, client, progress), client.on_retry)


def _attempt(
    engine: Engine,
    image: str,
    to: Reference,
    client: Registry,
    progress: Callable[[int, int], object],
) -> int:
    """Push once. Raises TransientError where a later attempt may succeed, OutsideError."""
    import requests
    from docker.errors import APIError, ImageNotFound

    api, known = engine.client.api, client.credentials
    totals: dict[str, int] = {}
    try:
        api.tag(image, to.name, to.tag)
        stream = api.push(
            to.name,
            tag=to.tag,
            stream=True,
            decode=True,
            auth_config=known.for_engine() if known else {},
        )
        for message in transfers.messages(stream, progress):
            if message.total:
                totals[message.layer] = message.total
    except transfers.TransferRefused as error:
        raise _failed(str(error), to, client) from None
    except ImageNotFound:
        raise OutsideError(f"the engine has no image {image}", "build it again") from None
    except APIError as error:
        raise _failed(str(error.explanation or error), to, client) from None
    except requests.RequestException as error:
        raise TransientError(f"the engine broke off the push of {to}: {error}") from None
    finally:
        with contextlib.suppress(APIError, requests.RequestException):
            api.remove_image(str(to), noprune=True)
    return sum(totals.values())


def _failed(message: str, to: Reference, client: Registry) -> Exception:
    """Return the error of an engine's message: TransientError, unless its words are final."""
    line = " ".join(message.split())[:300]
    words = re.sub(r"https?://\S+", "", line)  # an address may contain anything
    if re.search(_FINAL, words, re.IGNORECASE):
        status = 401 if re.search("auth", words, re.IGNORECASE) else 0
        return registry.refused(to, status, line, "write", client.credentials)
    return TransientError(f"{to.host}: the push broke off: {line}")
