"""Reads the layers of images: archives, trees, secrets, libraries. Nothing of an image runs.

* tars.py: members of a tar, whatever packs it.
* layers.py: what one layer holds, and what lies over each other.
* images.py: the same for a folder, an archive, a layout, an image of an engine or a registry.
* kept.py: the files whose text is kept with a layer.
* loader.py: the dynamic loader, over what the layers hold.
"""
