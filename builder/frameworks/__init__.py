"""The frameworks: a folder for each, which alone knows it, and what their probes and suites share.

builder/facts/frameworks.py says what a framework decides, and which there are.
"""
