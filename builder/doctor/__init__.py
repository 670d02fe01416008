"""Checks of this machine and of Cloud Build; a backend for jobs brings its own."""
