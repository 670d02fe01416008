"""Kubernetes as a place: a job as a JobSet, and the API server that runs it."""
