"""Programs that run inside an image, as builder/prove/probes/__init__.py describes them."""
