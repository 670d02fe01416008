"""The checks of an image that know PyTorch: one module each, with its CHECK."""
