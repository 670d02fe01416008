"""The start of a container whose job names secrets, sent with the job and run by its Python alone.

A job of Vertex AI holds the values of variables as they are, so each is read from Secret Manager
where the program runs, as the job's account. Arguments: the variables and their versions of
secrets as JSON, then the program, which takes this process over. Sources: Secret Manager, REST,
projects.secrets.versions.access; Compute Engine, Authenticate workloads, metadata server.
"""

import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request

TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
SECRETS = "https://secretmanager.googleapis.com/v1/"
TRIES = 5
OUTSIDE = 3


def read(address: str, header: str, value: str) -> dict:  # type: ignore[type-arg]
    """Return the JSON at an address; end with OUTSIDE where there is none."""
    request = urllib.request.Request(address, headers={header: value})
    for tries_left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return dict(json.load(answer))
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code in (400, 403, 404)
            if refused or not tries_left:
                sys.stderr.write(f"{address}: {error}\n")
                sys.exit(OUTSIDE)
            time.sleep(TRIES - tries_left)
    raise AssertionError("the last try returns or ends")


def main() -> None:
    """Put the secrets into the environment, and become the program."""
    token = read(TOKEN, "Metadata-Flavor", "Google")["access_token"]
    for name, version in json.loads(sys.argv[1]).items():
        answer = read(f"{SECRETS}{version}:access", "Authorization", f"Bearer {token}")
        os.environ[name] = base64.b64decode(answer["payload"]["data"]).decode()
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
