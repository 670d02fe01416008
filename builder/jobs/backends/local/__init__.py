"""This machine as a backend: a job runs as containers, in the environment of Vertex AI."""
