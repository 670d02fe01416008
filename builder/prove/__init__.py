"""The proof that an image works on its accelerator, made on a machine without one.

Read it in this order: smoke.py takes an image (subject.py) through the checks of a suite (suite.py,
checks/) and writes the receipt (receipts.py). The checks run containers in a session (session.py)
and judge what came out (run.py, judge.py); probes/ holds the programs that ask inside the image.

audit.py and report.py judge libraries by names and tell the result. wheels.py holds what the wheels
of the locks carry.
"""
