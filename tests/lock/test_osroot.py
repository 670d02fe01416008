"""The OS root made from Debian's packages: the same bytes each time, nothing of this machine."""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from builder.core import files
from builder.core.errors import OutsideError
from builder.core.settings import Settings
from builder.engine import connect
from builder.lock import debian, osroot
from builder.lock.osroot import Drift, RootTarball

SUITE = "bookworm"
makes_roots = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="made in a chroot, which needs root"),
]


@pytest.fixture
def small(tmp_path: Path) -> RootTarball:
    """A root with one file."""
    tarball = tmp_path / "rootfs.tar"
    with tarfile.open(tarball, "w") as tar:
        info = tarfile.TarInfo("etc/debian_version")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"12.9\n"))
    return RootTarball(
        SUITE, tarball, hashlib.sha256(tarball.read_bytes()).hexdigest(), {}, 1_700_000_000
    )


def test_reference_names_suite_and_content(small: RootTarball) -> None:
    assert small.reference == f"training-os-root:bookworm-{small.sha256[:12]}"


def test_archive_is_a_valid_image_with_the_same_digest_each_time(
    small: RootTarball, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    digest = osroot.archive(small, first)
    assert osroot.archive(small, second) == digest
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        content = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    for name in content:
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content[name]).hexdigest()}"
    (described,) = json.loads(content["index.json"])["manifests"]
    assert described["digest"] == digest
    manifest = json.loads(content["blobs/" + digest.replace(":", "/")])
    config = json.loads(content["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{small.sha256}"]
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert "made from Debian's packages" in config["config"]["Labels"][osroot.LABEL]
    assert sorted(tmp_path.glob("*.layer")) == []


def test_sources_come_from_apts_own_example_without_the_other_components() -> None:
    one_line = """\
# See sources.list(5)
deb http://public.example/debian bookworm main contrib non-free
deb http://public.example/debian bookworm-updates main contrib
deb http://public.example/debian-security bookworm-security main
#deb-src http://public.example/debian bookworm main
"""
    deb822 = """\
## a comment
Types: deb
URIs: http://public.example/debian
Suites: trixie trixie-updates
Components: main contrib

Types: deb
URIs: http://public.example/debian-security
Suites: trixie-security
Components: main
"""
    for example, suite in ((one_line, "bookworm"), (deb822, "trixie")):
        made = osroot._main_only(example)
        assert re.findall("URIs: (.*)", made) == [
            "http://public.example/debian",
            "http://public.example/debian-security",
        ]
        assert re.findall("Suites: (.*)", made) == [f"{suite} {suite}-updates", f"{suite}-security"]
        assert set(re.findall("Components: (.*)", made)) == {"main"}


def test_an_engine_that_is_not_there_is_one_line(small: RootTarball) -> None:
    with pytest.raises(OutsideError, match="the engine refused the OS root") as caught:
        osroot.load("false", small)
    assert "\n" not in caught.value.message


# --- real ones ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    return osroot.resolve(SUITE)


@pytest.fixture(scope="module")
def root(locked: dict[str, str]) -> RootTarball:
    return osroot.make(SUITE, locked)


@pytest.fixture
def other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that shares the packages of the real one: the root is made anew."""
    here = files.cache_home()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    there = files.cache_home()
    there.mkdir(parents=True)
    for name in ("debian", "tools"):
        (there / name).symlink_to(here / name)
    return there


class TestRoot:
    pytestmark = makes_roots

    def test_it_holds_what_the_published_image_holds(self, locked: dict[str, str]) -> None:
        assert {"apt", "base-files", "bash", "libc6", "perl-base", "tzdata"} <= locked.keys()
        assert not {"perl", "usrmerge", "systemd", "python3", "man-db", "vim"} & locked.keys()
        assert len(locked) < 100

    def test_the_same_versions_give_the_same_bytes(
        self, locked: dict[str, str], root: RootTarball, other_cache: Path
    ) -> None:
        before = os.umask(0o077)
        try:
            again = osroot.make(SUITE, locked)
        finally:
            os.umask(before)
        assert again.tarball != root.tarball
        assert again.sha256 == root.sha256
        assert hashlib.sha256(again.tarball.read_bytes()).hexdigest() == root.sha256
        assert again.drift == ()

    def test_nothing_of_this_machine_is_in_it(self, root: RootTarball) -> None:
        resolvers = re.findall(
            r"(?m)^nameserver (\S+)", Path("/etc/resolv.conf").read_text(errors="replace")
        )
        own = [str(files.cache_home()), "mmdebstrap", *resolvers]
        own += [value for name, value in os.environ.items() if name.lower().endswith("_proxy")]
        content: dict[str, bytes] = {}
        with tarfile.open(root.tarball) as tar:
            for member in tar:
                assert member.mtime <= root.epoch
                file = tar.extractfile(member) if member.isfile() else None
                content[member.name.removeprefix("./")] = file.read() if file else b""
        for name, data in content.items():
            assert not name.startswith(("var/log/", "usr/share/man/man", "var/lib/apt/lists/_"))
            for word in own:
                assert word.encode() not in data, name
        for absent in ("etc/ssl/certs/ca-certificates.crt", "etc/hostname", "etc/machine-id"):
            assert absent not in content
        assert content["etc/resolv.conf"] == b""
        assert b"path-exclude=/usr/share/man/*" in content["etc/dpkg/dpkg.cfg.d/slim"]
        assert "usr/share/doc/apt/copyright" in content

    def test_its_apt_sources_are_debians_own_not_the_hosts(self, root: RootTarball) -> None:
        with tarfile.open(root.tarball) as tar:
            names = [name for name in tar.getnames() if "/etc/apt/sources.list" in name]
            assert [name.strip("./") for name in names] == [
                "etc/apt/sources.list.d",
                "etc/apt/sources.list.d/debian.sources",
            ]
            file = tar.extractfile(names[1])
            assert file is not None
            text = file.read().decode()
        debs = debian.Packages(SUITE).download({"apt": root.packages["apt"]})
        assert text == osroot._public_sources(debs, SUITE)
        assert f"Suites: {SUITE} {SUITE}-updates\n" in text

    def test_from_the_cache_it_takes_no_time_and_no_network(
        self, locked: dict[str, str], root: RootTarball, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "/nonexistent")
        assert osroot.make(SUITE, locked) == root

    def test_a_version_that_is_gone_is_replaced_and_named(
        self, locked: dict[str, str], root: RootTarball, other_cache: Path
    ) -> None:
        stale = {**locked, "bash": "5.2.15-1", "left-behind": "1.0"}
        made = osroot.make(SUITE, stale)
        assert made.drift == (
            Drift("bash", "5.2.15-1", locked["bash"]),
            Drift("left-behind", "1.0", ""),
        )
        assert made.packages == locked
        assert made.sha256 == root.sha256

    def test_two_at_once_make_one(
        self, locked: dict[str, str], root: RootTarball, other_cache: Path
    ) -> None:
        events: list[object] = []
        threads = [
            threading.Thread(target=osroot.make, args=(SUITE, locked, events.append))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert osroot.make(SUITE, locked).sha256 == root.sha256
        assert sum(type(event).__name__ == "StepStarted" for event in events) == 1
        assert not list((other_cache / "os-roots").glob(".new.*"))

    @pytest.mark.engine
    def test_a_dockerfile_that_says_debian_is_built_on_it(
        self, root: RootTarball, tmp_path: Path
    ) -> None:
        engine = connect(Settings())
        reference = osroot.load("docker", root, engine.environment)
        (tmp_path / "Dockerfile").write_text(
            f"FROM debian:{SUITE}-slim\n"
            f"RUN grep -q {SUITE} /etc/os-release && dpkg --audit && apt-get check\n"
        )
        context = f"debian:{SUITE}-slim=docker-image://{reference}"
        build = [*engine.buildx, "build", "--no-cache", "--network", "none", "--quiet"]
        done = subprocess.run(
            [*build, "--build-context", context, "--tag", "training-os-root:test", str(tmp_path)],
            env=dict(engine.environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        engine.client.images.remove("training-os-root:test", force=True)
        assert osroot.load("docker", root, engine.environment) == reference
