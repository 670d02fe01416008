"""The places where a job can run, one folder each; protocol.py says what a place must do.

A new place is a new folder here, and a line in builder/cli that chooses it. No module of
builder/jobs outside this folder imports a place: an import contract in pyproject.toml checks that.
"""
