"""Training jobs: one description, run here as containers or on Vertex AI."""
