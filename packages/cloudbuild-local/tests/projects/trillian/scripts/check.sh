#!/bin/sh
set -e
cat /testbase /go/cache
echo "checked: $* ($MODE)"
