# What the steps of cloudbuild.yaml run in: the factory's Python packages, docker's client and buildx. The factory's own code
# is not in it: it is the source that each build brings. `builder render` wrote this; change templates/cloud/.
#
#   docker build --file builder.Dockerfile --tag builder requirements
ARG ROOT=debian:trixie-slim
FROM ${ROOT}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# The builder is an environment, not a product: Debian's newest, with every Python package locked.
# hadolint ignore=DL3008
RUN --mount=type=secret,id=network --mount=type=secret,id=ca \
    --mount=type=secret,id=apt --mount=type=secret,id=apt-sources \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi \
    && export DEBIAN_FRONTEND=noninteractive \
    && apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates docker-buildx docker-cli git python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/*.log

COPY build.txt /opt/build.txt
RUN --mount=type=secret,id=network --mount=type=secret,id=ca \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi \
    && python3 -m venv /opt/builder \
    && /opt/builder/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
        --requirement /opt/build.txt

# The host's certificates, proxies and indexes are sourced where a step finds them, as in a build.
RUN printf '%s\n' '#!/bin/sh' \
        'if [ -f /run/secrets/network ]; then . /run/secrets/network; fi' \
        'exec /opt/builder/bin/python -m builder "$@"' > /usr/local/bin/builder \
    && chmod 755 /usr/local/bin/builder

# The source belongs to whoever fetched it; git asks.
ENV PATH=/opt/builder/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/workspace \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=* \
    BUILDER_ENGINE=machine
WORKDIR /workspace
