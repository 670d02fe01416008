"""TensorFlow's table: what a release was tested with, and the order of the releases."""

from builder.frameworks.tensorflow import releases


def test_what_tensorflow_2_21_was_tested_with() -> None:
    tables = releases.tables()
    release = tables.releases[-1]
    assert release.versions == ("2.21.0",)
    assert (release.cuda, release.cudnn, release.wheels) == ("12.5", "9.3", "12.5")
    assert release.python == ("3.10", "3.11", "3.12", "3.13")
    assert tables.sets["12.5"].libraries["cudnn"] == "9.3.0.75"


def test_releases_stand_from_old_to_new() -> None:
    minors = [int(release.minor.split(".")[1]) for release in releases.tables().releases]
    assert minors == list(range(4, 22))
