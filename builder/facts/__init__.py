"""What is true of accelerators, CUDA, TensorFlow and machines, each value with its source."""
