"""Hyperparameter studies that the factory runs itself, one job for each trial."""
