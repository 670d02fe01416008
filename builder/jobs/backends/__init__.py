"""Where jobs run, a folder for each backend; protocol.py says what a backend does, choose.py picks.

A new backend is a new folder here, and a few lines in choose.py. No module of builder/jobs outside
this folder imports a backend: an import contract in pyproject.toml checks that.
"""
