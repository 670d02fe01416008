"""Vertex AI as a place: a job becomes a CustomJob or a HyperparameterTuningJob."""
