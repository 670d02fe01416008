"""Where jobs run, a folder for each backend; protocol.py says what a backend does, choose.py picks.

A new backend is a new folder here with a value BACKEND, and its name in builder/core/backends.py;
one of another distribution is an entry point. Import contracts in pyproject.toml check that no
command and no other backend imports one.
"""
