"""This machine as a place: a job runs as containers, in the environment of Vertex AI."""
