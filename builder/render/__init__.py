"""The lock as Dockerfiles and as Cloud Build's file."""
