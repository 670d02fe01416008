"""Watching a job: one reader for every place, a page on the terminal, a page of HTML."""
