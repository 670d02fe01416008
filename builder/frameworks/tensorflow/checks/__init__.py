"""The checks of an image that know TensorFlow: one module each, with its CHECK."""
