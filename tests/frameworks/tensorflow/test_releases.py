"""TensorFlow's releases, as far as their wheels say it, and the old ones' table."""

from builder.frameworks.tensorflow import releases


def test_what_a_wheel_asks_for_is_what_tensorflow_was_tested_with() -> None:
    """tensorflow/docs, install/source.md, names the same CUDA and cuDNN for each."""
    tested = {
        "2.12": ("11.8", "8.6"), "2.14": ("11.8", "8.7"), "2.15": ("12.2", "8.9"),
        "2.17": ("12.3", "8.9"), "2.19": ("12.5", "9.3"), "2.21": ("12.5", "9.3"),
    }  # fmt: skip
    for minor, versions in tested.items():
        release = releases.find(minor)
        assert release and (release.cuda, release.cudnn) == versions
        assert bool(release.libraries) == (release.cuda[:2] == "12")


def test_a_minor_release_is_its_newest_patch_and_the_oldest_stands_first() -> None:
    known = releases.releases()
    assert (known[0].version, known[-1].version) == ("2.4.4", "2.21.0")
    newest, first = releases.find("2.19"), releases.find("2.19.0")
    assert newest and first and (newest.version, first.version) == ("2.19.1", "2.19.0")
    assert (newest.libtpu, first.libtpu, newest.ranges) == ("0.0.10", "", False)
    open_ended = releases.find("2.20.0")
    assert open_ended and (open_ended.libtpu, open_ended.ranges) == ("0.0.14", True)
