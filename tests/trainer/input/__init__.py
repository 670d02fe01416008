"""Tests of reading records into batches."""
