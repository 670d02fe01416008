"""Running a build on a Docker engine, as Cloud Build would.

`plan.prepare` makes a plan of a file: every text is expanded, every value is known, and the engine
is not touched. `run.run` carries the plan out.
"""
