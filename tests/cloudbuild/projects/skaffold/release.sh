#!/bin/sh
set -ex
cat /tools
docker build -q -f deploy/Dockerfile -t $1/skaffold:edge .
docker tag $1/skaffold:edge $1/skaffold:$2
