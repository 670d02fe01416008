#!/bin/bash
set -e
cat $PW_ENVIRONMENT_ROOT/activate
exec bash -c "$1"
