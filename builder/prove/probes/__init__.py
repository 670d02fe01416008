"""Programs that run inside an image, with the image's own Python and nothing but its stdlib.

Each takes one JSON object as its only argument and prints one JSON object as its last line:
{"problems": [{"message", "fix"}], "seen": {...}}. They are put into a container's volume, never
into an image, and keep to Python 3.8, the oldest that a supported base brings.
"""
