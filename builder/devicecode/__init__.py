"""Device code: which GPUs do an image's libraries have kernels for? Read from the files alone.

    audit     every library x compute capability: native, older minor, PTX, missing
    prune     take out what one accelerator cannot run

It needs the standard library only, and no other part of the factory: the folder is also copied into
images, where the image's own Python (3.9 or newer) runs it.
"""
