"""Device code: on which GPUs do libraries run? Read from the files alone, without a GPU.

* pruning/ reads containers, applies the driver's rule, and takes out what one GPU cannot run. It
  stands alone: image builds copy it, and its text is part of a base's hash.
* library.py: what one library carries. reader.py, damage.py: reads it, and whether it is whole.
* inventory.py, records.py: the libraries of a folder, a wheel or a stream, and their records.
* verdict.py: whether a GPU runs what was read.
"""
