"""Tests of making records."""
