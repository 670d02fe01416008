"""Tests of what a run reports about itself."""
