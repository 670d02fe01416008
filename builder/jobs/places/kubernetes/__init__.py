"""Kubernetes: a job becomes a JobSet, written as YAML for kubectl. Nothing is sent from here."""
