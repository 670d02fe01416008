"""The factory: from images/<target>/image.yaml to a proven training image in a registry."""


def __getattr__(name: str) -> str:
    """Return `__version__`, which git's tags give to an installed wheel; a source tree has none."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("training-image-factory")
    except PackageNotFoundError:
        return "0+source"
