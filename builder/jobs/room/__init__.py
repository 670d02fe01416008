"""Where there is room for a job: the ways to run it, in which order, and what was tried."""
