"""The proof that an image works on its accelerator, made on a machine without one.

smoke.py runs the checks of a suite (suite.py, checks/) on the bench (bench.py) and writes the
receipt (receipts.py); judge.py says what is wrong with a training run (run.py). probes/ holds the
programs that ask their questions inside the image. audit/ and wheels.py read device code.
"""
