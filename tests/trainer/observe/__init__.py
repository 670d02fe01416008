"""Tests of what a run tells about itself."""
