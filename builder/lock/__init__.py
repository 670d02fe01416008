"""Every version and hash of an image: Python's packages, Debian's, the OS root."""
