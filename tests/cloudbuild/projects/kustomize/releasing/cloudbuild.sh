#!/bin/bash
set -e
echo "released with a token of ${#GITHUB_TOKEN} letters"
