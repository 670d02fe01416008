"""Programs that run inside an image, with the image's own Python and its standard library alone.

A probe takes one JSON object as its only argument and prints one JSON object as its last line:
{"problems": [{"message", "fix"}], "seen": {...}}. A probe is a module, which is copied into a
container's volume, never into an image; what it imports of the factory lies beside it there. It
keeps to Python 3.8, the oldest version that a supported base has.
"""
