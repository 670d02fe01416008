"""The factory: from images/<target>/image.yaml to a proven training image in a registry."""

__version__ = "0.1.0"
