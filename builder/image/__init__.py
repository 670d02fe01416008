"""Bases assembled from locked packages: each layer is a pure function of what goes into it."""
