"""Tests of training itself."""
