#!/bin/bash
set -eu
echo "built $* from $BRANCH_NAME ($PR_NUMBER), $(cat ~/cache), token ${#COVERAGE_TOKEN}, $LOG"
