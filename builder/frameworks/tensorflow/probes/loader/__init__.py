"""Would TensorFlow find its libraries here? Answered the way ld.so would, then by opening them.

TensorFlow opens CUDA's libraries by name at run time (`dlopen`), so a missing or a wrong one breaks
neither the build nor the import: TensorFlow says one line and trains on the CPU. Needs no GPU.

Request: {"accelerator": "gpu" | "cpu" | "tpu", "cuda": "12.5", "cudnn": "9.3",
          "locked": {package: version}, "strict": true}
`strict`: every file of the image is ours, so that a libcuda or a second copy is wrong anywhere in
it. In a published base, either is wrong only where the loader would come across it.
"""
