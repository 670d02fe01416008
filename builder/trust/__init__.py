"""Signed statements about an image: written, signed, laid beside it, and judged."""
