"""The checks of an image that ask the same of every framework: one module each, with its CHECK."""
