"""The OS root `debian:<suite>-slim`, made from Debian's packages where no registry has it.

It holds what the published image holds: Debian's required packages and apt, without recommended
packages, documentation, translations and manual pages. mmdebstrap makes it from a repository of
exactly the locked packages, so that the same versions give the same bytes. It holds nothing of this
machine: no mirror, proxy, CA, host name or resolver.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.core import files, system
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.lock import debian
from builder.registry import manifests
from builder.registry.manifests import Descriptor

WANTED = ("?essential", "?priority(required)", "apt")
"""The packages of the published image, as apt patterns."""
MAKER_SUITE = "trixie"
"""The suite that mmdebstrap comes from on every host, so that all hosts make the same bytes."""
LABEL = "training.os-root"
REPOSITORY = "training-os-root"

# The slim image's excludes. They stay in the root and also apply to packages that are added later.
_EXCLUDES = """\
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/groff/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/linda/*
path-exclude=/usr/share/lintian/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
path-exclude=/usr/share/man/*
"""
_FILES = {
    "etc/dpkg/dpkg.cfg.d/slim": _EXCLUDES,
    # as in the published image: no fsync for each file, no services started by packages
    "etc/dpkg/dpkg.cfg.d/docker-apt-speedup": "force-unsafe-io\n",
    "etc/apt/apt.conf.d/docker-no-languages": 'Acquire::Languages "none";\n',
    "etc/apt/apt.conf.d/docker-gzip-indexes": 'Acquire::GzipIndexes "true";\n',
    "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
}
_RECIPE = "1"
"""Part of the cache key. Raise it where this file makes other bytes from the same packages."""


@dataclass(frozen=True)
class Drift:
    """A locked version that the mirror no longer has, and the one used instead ("" for none)."""

    name: str
    locked: str
    used: str


@dataclass(frozen=True)
class RootTarball:
    """An OS root as a tarball.

    sha256: of the tarball, in hex. packages: name -> version. epoch: when the newest package was
    built, in seconds since 1970; no file is newer. drift: the locked versions that were replaced.
    """

    suite: str
    tarball: Path
    sha256: str
    packages: Mapping[str, str]
    epoch: int
    drift: tuple[Drift, ...] = ()

    @property
    def reference(self) -> str:
        """Its name in an engine."""
        return f"{REPOSITORY}:{self.suite}-{self.sha256[:12]}"


def resolve(suite: str, on_event: OnEvent = ignore) -> dict[str, str]:
    """Package -> version of a root that is made now, for a lock. Raises OutsideError."""
    return _resolve(debian.Packages(suite, on_event=on_event))


def _resolve(packages: debian.Packages, wanted: Sequence[str] = WANTED) -> dict[str, str]:
    found = packages.closure(wanted)
    if "usrmerge" in found:
        # Debian 12 has two packages for a merged /usr. The root is made with one: usr-is-merged,
        # which only checks it, is enough.
        found = packages.closure([*wanted, "usr-is-merged"])
    return found


def make(suite: str, locked: Mapping[str, str], on_event: OnEvent = ignore) -> RootTarball:
    """The root of these package versions, made once and then taken from the cache.

    A version that the mirror no longer has is replaced by the suite's present one, and named in
    `drift`. Raises OutsideError.
    """
    home = files.cache_home() / "os-roots"
    folder = home / f"{suite}-{_key(suite, locked)}"
    with files.locked(home / f".{folder.name}.lock"):
        if not (folder / "root.json").exists():
            _keep(suite, locked, folder, on_event)
    facts = json.loads((folder / "root.json").read_text())
    return RootTarball(
        suite,
        folder / "rootfs.tar",
        facts["sha256"],
        facts["packages"],
        facts["epoch"],
        tuple(Drift(*entry) for entry in facts["drift"]),
    )


def _keep(suite: str, locked: Mapping[str, str], folder: Path, on_event: OnEvent) -> None:
    """Make a root and put it into the cache: rootfs.tar, and root.json with the facts about it."""
    packages = debian.Packages(suite, on_event=on_event)
    used, drift = _available(packages, locked)
    with step(f"OS root: Debian {suite} from {len(used)} packages", on_event) as making:
        debs = packages.download(used)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new."))
        try:
            epoch = max(_built(deb) for deb in debs)
            _bootstrap(suite, debs, epoch, new, on_event)
            facts = {
                "sha256": _sha256(new / "rootfs.tar"),
                "packages": used,
                "epoch": epoch,
                "drift": [[d.name, d.locked, d.used] for d in drift],
            }
            files.write(new / "root.json", json.dumps(facts, indent=1))
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        making.detail = f"{(folder / 'rootfs.tar').stat().st_size / 1e6:.0f} MB"


def _key(suite: str, locked: Mapping[str, str]) -> str:
    return hashlib.sha256(repr((_RECIPE, suite, sorted(locked.items()))).encode()).hexdigest()[:16]


def _available(
    packages: debian.Packages, locked: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Drift, ...]]:
    """The locked versions that the mirror has, and its present ones in place of the others."""
    there = packages.versions(locked)
    gone = [name for name, version in locked.items() if version not in there.get(name, ())]
    if not gone:
        return dict(locked), ()
    keep = [f"{name}={version}" for name, version in locked.items() if name not in gone]
    try:
        used = _resolve(packages, [*WANTED, *keep])
    except OutsideError:
        used = _resolve(packages)  # the versions that are left do not fit the newer ones
    drift = [
        Drift(name, locked.get(name, ""), used.get(name, ""))
        for name in sorted(used.keys() | locked.keys())
        if used.get(name) != locked.get(name)
    ]
    return used, tuple(drift)


# --- making it -----------------------------------------------------------------------------------


def _built(deb: Path) -> int:
    """When a package was built, in seconds since 1970: the time stamp of its first member."""
    with deb.open("rb") as file:
        return int(file.read(68)[24:36])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bootstrap(
    suite: str, debs: Sequence[Path], epoch: int, folder: Path, on_event: OnEvent
) -> None:
    """Make `folder/rootfs.tar` with mmdebstrap, from a repository of exactly these packages."""
    repository, extra = folder / "repository", folder / "extra"
    repository.mkdir()
    names, essential = _index(suite, debs, repository)
    files.write(folder / "dpkg.cfg", _EXCLUDES + "force-unsafe-io\n")
    tools = _mmdebstrap(on_event)
    merge = 'cd "$1" && for d in bin lib lib64 sbin; do mkdir -p usr/$d; ln -s usr/$d $d; done'
    finish = (
        'cd "$1" && rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/dpkg/dpkg.cfg.d/*'
        " etc/apt/apt.conf.d/99mmdebstrap etc/resolv.conf etc/hostname"
        " var/log/* var/lib/dpkg/*-old var/cache/debconf/*-old"
        f" && install -m 644 /dev/null etc/resolv.conf{_install(suite, debs, extra)}"
    )
    command = [
        str(tools / "bin/perl"),
        str(tools / "root/usr/bin/mmdebstrap"),
        "--variant=essential",
        "--mode=" + ("root" if os.geteuid() == 0 else "unshare"),
        f"--include={','.join(sorted(names - essential))}",
        f"--dpkgopt={folder / 'dpkg.cfg'}",
        "--aptopt=APT::Sandbox::User root",
        "--skip=check/empty",
        *([f"--setup-hook={merge}"] if "usr-is-merged" in names else []),
        f"--customize-hook={finish}",
        "--format=tar",
        suite,
        str(folder / "rootfs.tar"),
        f"deb [trusted=yes] copy:{repository} ./",
    ]
    _run(suite, command, tools, epoch, folder)
    shutil.rmtree(repository)
    shutil.rmtree(extra)


def _install(suite: str, debs: Sequence[Path], extra: Path) -> str:
    """Shell commands that put the root's own files into it; writes these files into `extra`."""
    commands = ""
    sources = {"etc/apt/sources.list.d/debian.sources": _public_sources(debs, suite)}
    for name, text in {**_FILES, **sources}.items():
        files.write(extra / name, text)
        mode = 755 if "/sbin/" in name else 644
        commands += f' && install -D -m {mode} {extra / name} "$1"/{name}'
    return commands


def _run(suite: str, command: Sequence[str], tools: Path, epoch: int, folder: Path) -> None:
    """Run mmdebstrap; its output goes to `folder`. Raises OutsideError, and keeps the output."""
    log = folder / "mmdebstrap.log"
    with log.open("wb") as out:
        done = subprocess.run(
            command,
            # maintainer scripts run in this environment: it holds nothing of this machine
            env={
                "PATH": f"{tools}/root/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
                "TZ": "UTC",
                "TMPDIR": str(folder),
                "SOURCE_DATE_EPOCH": str(epoch),
            },
            umask=0o022,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        kept = files.cache_home() / "os-roots" / "mmdebstrap.log"
        shutil.copy(log, kept)
        lines = log.read_text(errors="replace").splitlines()
        wrong = [line for line in lines if re.match(r"E: |dpkg: error", line)]
        raise OutsideError(
            f"mmdebstrap could not make Debian {suite}: {(wrong or lines or ['no message'])[0]}",
            f"see {kept}; as root it needs to mount proc and sysfs, else user namespaces",
        )


def _index(suite: str, debs: Sequence[Path], repository: Path) -> tuple[set[str], set[str]]:
    """Make a flat apt repository of links to the packages. Returns all names and the essential."""
    names, essential, entries = set(), set(), []
    for deb in sorted(debs):
        done = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, check=False)
        control = done.stdout.decode().rstrip("\n")
        if done.returncode:
            raise OutsideError(f"{deb}: not a readable package", f"delete {deb} and retry")
        fields = dict(re.findall(r"(?m)^(Package|Essential): (.*)$", control))
        names.add(fields["Package"])
        if fields.get("Essential") == "yes":
            essential.add(fields["Package"])
        file = f"{fields['Package']}.deb"
        (repository / file).symlink_to(deb)
        size = deb.stat().st_size
        entries.append(f"{control}\nFilename: ./{file}\nSize: {size}\nSHA256: {_sha256(deb)}\n")
    packages = "\n".join(entries).encode()
    (repository / "Packages").write_bytes(packages)
    entry = f"{hashlib.sha256(packages).hexdigest()} {len(packages)} Packages"
    (repository / "Release").write_text(f"Suite: {suite}\nCodename: {suite}\nSHA256:\n {entry}\n")
    return names, essential


def _public_sources(debs: Sequence[Path], suite: str) -> str:
    """The example sources of Debian's apt package, which name no mirror of this host."""
    apt = next(deb for deb in debs if deb.name.startswith("apt_"))
    done = subprocess.run(["dpkg-deb", "--fsys-tarfile", apt], capture_output=True, check=False)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            if re.search(r"apt/examples/(debian\.sources|sources\.list)$", member.name):
                file = archive.extractfile(member)
                assert file is not None
                return _main_only(file.read().decode())
    return f"# no default in this release's apt package; name a mirror of Debian {suite} here\n"


def _main_only(example: str) -> str:
    """An example list of apt's, as deb822 entries for the `main` component."""
    seen: dict[str, list[str]] = {}
    for uris, suites in re.findall(r"(?m)^URIs: (\S+)\nSuites: (.+)$", example):
        seen.setdefault(uris, []).extend(suites.split())
    for uri, name in re.findall(r"(?m)^deb (\S+) (\S+) ", example):
        seen.setdefault(uri, []).append(name)
    return "\n".join(
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        for uri, suites in seen.items()
    )


def _mmdebstrap(on_event: OnEvent) -> Path:
    """A private folder with mmdebstrap and a perl for it: `bin/perl`, `root/usr/bin`."""
    packages = debian.Packages(MAKER_SUITE, on_event=on_event)
    # its dependency on Python is left out: the filter that needs it runs on any python3
    versions = packages.closure(["perl"]) | packages.candidates(["mmdebstrap"])
    key = hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()[:16]
    folder = files.cache_home() / "tools" / f"mmdebstrap-{key}"
    with files.locked(folder.parent / ".mmdebstrap.lock"):
        if not (folder / "bin/perl").exists():
            root = folder / "root"
            shutil.rmtree(folder, ignore_errors=True)
            debian.unpack(packages.download(versions), root)
            folders = [
                str(path)
                for pattern in (
                    "share/perl5",
                    "share/perl/5.*",
                    "lib/*/perl/5.*",
                    "lib/*/perl-base",
                )
                for path in sorted(root.glob(f"usr/{pattern}"))
            ]
            script = debian.launcher(root, root / "usr/bin/perl", {"PERL5LIB": ":".join(folders)})
            files.write(folder / "bin/perl", script, 0o755)
    return folder


# --- into an engine ------------------------------------------------------------------------------


def archive(root: RootTarball, target: Path) -> str:
    """Write the root as an OCI image archive, which every `docker load` reads. Returns its digest.

    The digest depends on the root's content only.
    """
    layer = target.with_suffix(".layer")
    with (
        root.tarball.open("rb") as source,
        layer.open("wb") as out,
        gzip.GzipFile("", "wb", 6, out, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)
    described = f"debian:{root.suite}-slim, made from Debian's packages"
    config = manifests.configuration(
        {"architecture": system.architecture(), "os": "linux"},
        {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["bash"],
            "Labels": {LABEL: f"{described}, sha256:{root.sha256}"},
        },
        [manifests.Added(f"sha256:{root.sha256}", described)],
        root.epoch,
    )
    size = layer.stat().st_size
    packed_layer = Descriptor(manifests.OCI_LAYER_GZIP, f"sha256:{_sha256(layer)}", size)
    configuration = Descriptor.of(manifests.OCI_CONFIG, config)
    image = manifests.image(configuration, [packed_layer])
    members = manifests.layout(image, root.reference)
    members[manifests.blob_path(configuration.digest)] = config
    with tarfile.open(target, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        info = tarfile.TarInfo(manifests.blob_path(packed_layer.digest))
        info.size = size
        with layer.open("rb") as file:
            tar.addfile(info, file)
    layer.unlink()
    return image.digest


def load(
    docker: Path | str, root: RootTarball, environment: Mapping[str, str] | None = None
) -> str:
    """Put the root into an engine, unless it is there. Returns the reference to build from.

    A Dockerfile keeps saying `FROM debian:bookworm-slim`; the build gets
    `--build-context debian:bookworm-slim=docker-image://<reference>`.
    """
    env = {**os.environ, **(environment or {})}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(docker), *arguments], env=env, capture_output=True, text=True, check=False
        )

    if call("image", "inspect", root.reference).returncode == 0:
        return root.reference
    with tempfile.TemporaryDirectory(dir=root.tarball.parent, prefix=".load.") as scratch:
        archive(root, Path(scratch) / "image.tar")
        done = call("image", "load", "--quiet", "--input", str(Path(scratch) / "image.tar"))
    if done.returncode:
        raise OutsideError(
            f"the engine refused the OS root: {(done.stderr.strip().splitlines() or ['?'])[-1]}",
            "check the engine: builder doctor",
        )
    return root.reference
