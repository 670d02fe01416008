#!/bin/sh
set -e
echo "cached in $GOPATH" > /go/cache
