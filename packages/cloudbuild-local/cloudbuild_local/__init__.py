"""Validate and run a cloudbuild.yaml of Google Cloud Build on this machine.

`reader` reads a file and expands its substitutions, `rules` finds what Cloud Build would refuse,
`runner` runs the build on a Docker engine, `cli` is the command.
"""

__version__ = "0.1.0"
