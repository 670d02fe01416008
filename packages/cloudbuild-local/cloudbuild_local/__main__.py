"""`python -m cloudbuild_local`."""

from cloudbuild_local.cli import script

script()
