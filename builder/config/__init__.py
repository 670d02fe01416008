"""image.yaml, the versions that it resolves to, their lock, and the Dockerfile rendered from it."""
