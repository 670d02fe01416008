"""The program inside the training images.

It imports the standard library, NumPy, TensorFlow and Keras, which every image has, and nothing
of the factory that builds the images.
"""
