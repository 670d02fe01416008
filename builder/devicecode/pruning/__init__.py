"""The program that takes device code out of libraries, and all that it needs.

An image build mounts this folder alone and runs it with the image's own Python (3.9 or newer), so
it is standard library only. Its files are part of a base's hash; nothing else of the factory is.
"""
