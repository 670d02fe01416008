"""Vertex AI as a backend: a job becomes a CustomJob or a HyperparameterTuningJob."""
