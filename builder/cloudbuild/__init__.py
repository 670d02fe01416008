"""Google Cloud Build: submit the project's build and follow it; triggers on pushes to git."""
