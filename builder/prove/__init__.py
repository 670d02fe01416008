"""The proof that an image works on its accelerator, made on a machine without one.

Read it in this order: image.py is an image that was read, and what the project made it to be; the
modules of checks/ judge it. smoke.py takes an image of the project through the checks of a suite
(suite.py) and writes the receipt (receipts.py). Some checks run containers in a session
(session.py) and judge what came out (judge.py); probes/ holds the programs that ask inside the
image. any_image.py says what a suite saw in an image that anybody made, and waste.py where its
bytes go.

audit.py asks builder.audit on which GPUs the libraries of targets, or of anything else, run.
wheels.py holds what the wheels of the locks carry.
"""
