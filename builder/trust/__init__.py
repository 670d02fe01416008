"""Attestations about an image: written, signed, attached to it, and verified."""
