"""The checks of an image that know nothing of its framework: one module each, with its CHECK."""
