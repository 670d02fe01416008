"""Tests of the job folder."""
