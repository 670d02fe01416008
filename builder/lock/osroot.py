"""The OS root `debian:<suite>-slim`, made from Debian's packages where no registry has it.

The way the published image is made: Debian's required packages and apt, nothing recommended, no
documentation, translations or manual pages. mmdebstrap does the work, from a repository that holds
exactly the locked packages: the same versions give the same bytes. Nothing of this machine ends in
the root: no mirror, proxy, CA, host name or resolver.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.core import files
from builder.core.errors import OutsideError
from builder.core.events import OnEvent, ignore, step
from builder.lock import debian

WANTED = ("?essential", "?priority(required)", "apt")
"""What the published image holds, as apt patterns."""
MAKER_SUITE = "trixie"
"""mmdebstrap comes from here whatever the host is, so that hosts agree on the bytes."""
LABEL = "training.os-root"
REPOSITORY = "training-os-root"

# The slim image's excludes; they stay in the root, so that packages added later are slim too.
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
"""Part of the cache key: changes when this file would make other bytes from the same packages."""


@dataclass(frozen=True)
class Drift:
    """A locked version that the mirror no longer has, and the one used instead ("" for none)."""

    name: str
    locked: str
    used: str


@dataclass(frozen=True)
class Root:
    """An OS root as a tarball."""

    suite: str
    tarball: Path
    sha256: str
    packages: Mapping[str, str]
    epoch: int
    """Seconds: when the newest package was built; no file is newer."""
    drift: tuple[Drift, ...] = ()

    @property
    def reference(self) -> str:
        """The name under which an engine gets it."""
        return f"{REPOSITORY}:{self.suite}-{self.sha256[:12]}"


def resolve(suite: str, on_event: OnEvent = ignore) -> dict[str, str]:
    """Package -> version of a root made now: what a lock holds. Raises OutsideError."""
    return _resolve(debian.Packages(suite, on_event=on_event))


def _resolve(packages: debian.Packages, wanted: Sequence[str] = WANTED) -> dict[str, str]:
    found = packages.closure(wanted)
    if "usrmerge" in found:
        # Debian 12: one of two; the root is made with a merged /usr, so the check is enough
        found = packages.closure([*wanted, "usr-is-merged"])
    return found


def make(suite: str, locked: Mapping[str, str], on_event: OnEvent = ignore) -> Root:
    """The root that holds these versions, made once and then taken from the cache.

    A version that the mirror has no more is replaced by what the suite has now, and named in
    `drift`. Raises OutsideError.
    """
    home = files.cache_home() / "os-roots"
    folder = home / f"{suite}-{_key(suite, locked)}"
    with files.locked(home / f".{folder.name}.lock"):
        if not (folder / "root.json").exists():
            packages = debian.Packages(suite, on_event=on_event)
            used, drift = _available(packages, locked)
            with step(f"OS root: Debian {suite} from {len(used)} packages", on_event) as making:
                debs = packages.download(used)
                new = Path(tempfile.mkdtemp(dir=home, prefix=".new."))
                try:
                    epoch = max(_built(deb) for deb in debs)
                    _make(suite, debs, epoch, new, on_event)
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
                size = (folder / "rootfs.tar").stat().st_size / 1e6
                making.detail = f"{size:.0f} MB"
    facts = json.loads((folder / "root.json").read_text())
    return Root(
        suite,
        folder / "rootfs.tar",
        facts["sha256"],
        facts["packages"],
        facts["epoch"],
        tuple(Drift(*entry) for entry in facts["drift"]),
    )


def _key(suite: str, locked: Mapping[str, str]) -> str:
    return hashlib.sha256(repr((_RECIPE, suite, sorted(locked.items()))).encode()).hexdigest()[:16]


def _available(
    packages: debian.Packages, locked: Mapping[str, str]
) -> tuple[dict[str, str], tuple[Drift, ...]]:
    """The locked versions as far as they are there, and today's for the rest."""
    there = packages.versions(locked)
    gone = [name for name, version in locked.items() if version not in there.get(name, ())]
    if not gone:
        return dict(locked), ()
    keep = [f"{name}={version}" for name, version in locked.items() if name not in gone]
    try:
        used = _resolve(packages, [*WANTED, *keep])
    except OutsideError:
        used = _resolve(packages)  # what is left of the lock does not fit the newer versions
    drift = [
        Drift(name, locked.get(name, ""), used.get(name, ""))
        for name in sorted(used.keys() | locked.keys())
        if used.get(name) != locked.get(name)
    ]
    return used, tuple(drift)


# --- making it -----------------------------------------------------------------------------------


def _built(deb: Path) -> int:
    """When a package was built, in seconds: the time stamp of its first member."""
    with deb.open("rb") as file:
        return int(file.read(68)[24:36])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make(suite: str, debs: Sequence[Path], epoch: int, folder: Path, on_event: OnEvent) -> None:
    """Run mmdebstrap over a repository of just these packages: `folder/rootfs.tar`."""
    repository, extra = folder / "repository", folder / "extra"
    repository.mkdir()
    names, essential = _index(suite, debs, repository)
    own = {**_FILES, "etc/apt/sources.list.d/debian.sources": _public_sources(debs, suite)}
    install = ""
    for name, text in own.items():
        files.write(extra / name, text)
        mode = 755 if "/sbin/" in name else 644
        install += f' && install -D -m {mode} {extra / name} "$1"/{name}'
    files.write(folder / "dpkg.cfg", _EXCLUDES + "force-unsafe-io\n")
    tools = _maker(on_event)
    merge = 'cd "$1" && for d in bin lib lib64 sbin; do mkdir -p usr/$d; ln -s usr/$d $d; done'
    finish = (
        'cd "$1" && rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/dpkg/dpkg.cfg.d/*'
        " etc/apt/apt.conf.d/99mmdebstrap etc/resolv.conf etc/hostname"
        " var/log/* var/lib/dpkg/*-old var/cache/debconf/*-old"
        f" && install -m 644 /dev/null etc/resolv.conf{install}"
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
    log = folder / "mmdebstrap.log"
    with log.open("wb") as out:
        done = subprocess.run(
            command,
            # nothing of this machine's environment: maintainer scripts run with it
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
    shutil.rmtree(repository)
    shutil.rmtree(extra)


def _index(suite: str, debs: Sequence[Path], repository: Path) -> tuple[set[str], set[str]]:
    """A flat apt repository of links to the packages: all names, and the essential ones."""
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
    """The apt sources that Debian's own apt package gives as its example: no mirror of ours."""
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


def _maker(on_event: OnEvent) -> Path:
    """mmdebstrap with a perl of its own, in a private folder: `bin/perl`, `root/usr/bin`."""
    packages = debian.Packages(MAKER_SUITE, on_event=on_event)
    # its Python dependency is left out: the filter it is for runs on any python3
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


def archive(root: Root, target: Path) -> str:
    """Write the root as an OCI image archive (which `docker load` of any age reads): its digest.

    The digest depends on the root's content only.
    """
    layer = target.with_suffix(".layer")
    with (
        root.tarball.open("rb") as source,
        layer.open("wb") as out,
        gzip.GzipFile("", "wb", 6, out, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)
    created = datetime.fromtimestamp(root.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    described = f"debian:{root.suite}-slim, made from Debian's packages"
    config = _json(
        {
            "architecture": _architecture(),
            "os": "linux",
            "created": created,
            "config": {
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Cmd": ["bash"],
                "Labels": {LABEL: f"{described}, sha256:{root.sha256}"},
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{root.sha256}"]},
            "history": [{"created": created, "created_by": described}],
        }
    )
    oci = "application/vnd.oci.image"
    layer_hash, config_hash = _sha256(layer), hashlib.sha256(config).hexdigest()
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": _descriptor(f"{oci}.config.v1+json", config_hash, len(config)),
            "layers": [
                _descriptor(f"{oci}.layer.v1.tar+gzip", layer_hash, layer.stat().st_size),
            ],
        }
    )
    digest = hashlib.sha256(manifest).hexdigest()
    described_manifest = {
        **_descriptor(f"{oci}.manifest.v1+json", digest, len(manifest)),
        "annotations": {
            "io.containerd.image.name": f"docker.io/library/{root.reference}",
            "org.opencontainers.image.ref.name": root.reference.partition(":")[2],
        },
    }
    blobs = "blobs/sha256/"
    members = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [described_manifest]}),
        "manifest.json": _json(
            [
                {
                    "Config": blobs + config_hash,
                    "RepoTags": [root.reference],
                    "Layers": [blobs + layer_hash],
                }
            ]
        ),
        blobs + config_hash: config,
        blobs + digest: manifest,
    }
    with tarfile.open(target, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        info = tarfile.TarInfo(blobs + layer_hash)
        info.size = layer.stat().st_size
        with layer.open("rb") as file:
            tar.addfile(info, file)
    layer.unlink()
    return f"sha256:{digest}"


def load(docker: Path | str, root: Root, environment: Mapping[str, str] | None = None) -> str:
    """Put the root into an engine, unless it is there: the reference to build from.

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


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}
