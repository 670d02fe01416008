"""The audit of device code, of anything: a folder, wheels, libraries, an image wherever it lies.

The package device-code-audit is this room and what it imports, and nothing else of the factory
(a contract of import-linter).

* sources.py: what a name leads to. audited.py: what was read, the GPUs to judge it for, refusals.
* report.py: a table for people, data for programs, annotations for GitHub.
* ptxas.py: whether PTX compiles.
"""
