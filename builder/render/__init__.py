"""Dockerfiles and cloudbuild.yaml, rendered from a lock and templates."""
