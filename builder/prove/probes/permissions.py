"""Who may become root in the image, and who may change what it runs?

It runs as root, so that it sees every file of the image.

Request: {"user": the image's USER, "program": "/app", "strict": true, "skip": ["/smoke"]}
`strict`: every file of the image is ours. In a published base, set-user-ID programs and
world-writable files are only reported.
"""

# Paths are text here, as in the other probes
# ruff: noqa: PTH110, PTH112, PTH116, PTH118, PTH119, PTH120, PTH123, PTH207
from __future__ import annotations

import glob
import hashlib
import json
import os
import pwd
import stat
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    from collections.abc import Iterator

    Json = dict[str, Any]

SHOWN = 3

# Programs that Debian's and Ubuntu's packages install with a set-user-ID or set-group-ID bit
_DEBIAN = """
at bwrap chage chfn chsh crontab dbus-daemon-launch-helper dotlockfile exim4 expiry fusermount
fusermount3 gpasswd mail-lock mail-touchlock mail-unlock mount mount.cifs mount.ecryptfs_private
mount.nfs newgidmap newgrp newuidmap ntfs-3g pam_extrausers_chkpwd passwd ping ping6 pkexec
polkit-agent-helper-1 postdrop postqueue pppd screen ssh-agent ssh-keysign su sudo umount
unix_chkpwd utempter wall write write.ul
"""
SET_ID = frozenset(_DEBIAN.split())

ACCOUNTS = ("/etc/passwd", "/etc/shadow", "/etc/group", "/etc/sudoers", "/etc/ld.so.preload")
LOADER = (
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/lib", "/lib64", "/usr/lib",
    "/usr/lib64", "/usr/local/lib",
)  # fmt: skip


class FileRights:
    """A file or a folder: its path in the image, and its status."""

    __slots__ = ("path", "status")

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.path = path
        self.status = status

    def may_write(self, uid: int, gid: int) -> bool:
        """Tell whether this user can change it: an owner can give himself the right."""
        mode = self.status.st_mode
        if self.status.st_uid == uid:
            return True
        return bool(mode & 0o020 and self.status.st_gid == gid) or bool(mode & 0o002)


def inside(root: str, path: str) -> str:
    """Return the path that a file of this machine has in the image."""
    return os.path.normpath("/" + os.path.relpath(path, root))


def walk(root: str, top: str, skip: list[str]) -> Iterator[FileRights]:
    """Yield a folder, and all folders and regular files below it; links are not followed."""
    left_out = {os.path.join(root, name.lstrip("/")) for name in (*skip, "proc", "sys", "dev")}
    start = os.path.join(root, top.lstrip("/")).rstrip("/") or "/"
    for folder, folders, names in os.walk(start):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in left_out]
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                yield FileRights(inside(root, path), status)


def packaged(root: str) -> dict[str, str]:
    """Return the MD5 of each program of SET_ID that a package installed, by its real path."""
    checksums = {}
    for name in glob.glob(os.path.join(root, "var/lib/dpkg/info/*.md5sums")):
        with open(name) as opened:
            for line in opened:
                checksum, _, path = line.rstrip("\n").partition("  ")
                folder, last = os.path.split(path)
                if last in SET_ID:
                    parent = os.path.realpath(os.path.join(root, folder))
                    checksums[inside(os.path.realpath(root), os.path.join(parent, last))] = checksum
    return checksums


def becomes_root(root: str, skip: list[str]) -> Iterator[str]:
    """Yield programs with a set-user-ID or set-group-ID bit that Debian's packages do not have."""
    debian = packaged(root)
    for entry in walk(root, "/", skip):
        mode = entry.status.st_mode
        if not (stat.S_ISREG(mode) and mode & 0o6000 and mode & 0o111):
            continue
        if os.path.basename(entry.path) in SET_ID and entry.path in debian:
            with open(os.path.join(root, entry.path.lstrip("/")), "rb") as opened:
                if hashlib.md5(opened.read()).hexdigest() == debian[entry.path]:
                    continue
        yield entry.path


def anybody_writes(root: str, folders: list[str], skip: list[str]) -> Iterator[str]:
    """Yield what everybody may write to in folders that programs or modules are looked for in, or
    the folder in which everybody could make such a folder."""
    for folder in dict.fromkeys(folders):
        real = os.path.realpath(os.path.join(root, folder.lstrip("/")))
        if os.path.isdir(real):
            for entry in walk(root, inside(os.path.realpath(root), real), skip):
                if entry.status.st_mode & 0o002:
                    yield entry.path
        elif not os.path.exists(real):
            parent = os.path.dirname(folder)
            while not os.path.isdir(os.path.join(root, parent.lstrip("/"))):
                parent = os.path.dirname(parent)
            if os.stat(os.path.join(root, parent.lstrip("/"))).st_mode & 0o002:
                yield parent


def capable(root: str, skip: list[str]) -> Iterator[str]:
    """Yield files with capabilities (capabilities(7)), by which a user may become root."""
    for entry in walk(root, "/", skip):
        if stat.S_ISREG(entry.status.st_mode):
            try:
                os.getxattr(os.path.join(root, entry.path.lstrip("/")), "security.capability")
            except OSError:
                continue
            yield entry.path


def overwritable(root: str, uid: int, gid: int) -> Iterator[str]:
    """Yield the accounts and the folders of the loader that a user may write to."""
    listed = []
    for name in ("etc/ld.so.conf", *glob.glob(os.path.join(root, "etc/ld.so.conf.d/*.conf"))):
        try:
            with open(os.path.join(root, name)) as opened:
                listed += [line.strip() for line in opened if line.startswith("/")]
        except OSError:
            continue
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for path in (*ACCOUNTS, *LOADER, *listed, *folders):
        whole = os.path.join(root, path.lstrip("/"))
        if os.path.exists(whole) and FileRights(path, os.stat(whole)).may_write(uid, gid):
            yield path


def listed(paths: list[str]) -> str:
    """Return the first paths, and how many more there are."""
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def probe(request: Json, root: str = "/", searched: list[str] | None = None) -> Json:
    """Return every question. root, searched (folders): a test describes another image by them."""
    problems: list[dict[str, str]] = []
    skip = request["skip"]
    if searched is None:
        paths = [*os.environ.get("PATH", "").split(":"), *sys.path]
        searched = [
            path for path in paths if path.startswith("/") and not path.startswith(tuple(skip))
        ]
    rising = sorted(becomes_root(root, skip))
    writable = sorted(set(anybody_writes(root, searched, skip)))
    if rising and request["strict"]:
        problems.append(
            {
                "message": f"programs that run with another user's rights: {listed(rising)}",
                "fix": "take the bit away (chmod u-s,g-s), or leave the program out: only Debian's "
                "own, unchanged, are let through",
            }
        )
    if writable and request["strict"]:
        problems.append(
            {
                "message": f"everybody may write to what the image runs: {listed(writable)}",
                "fix": "chmod o-w, or take the folder out of PATH or PYTHONPATH",
            }
        )
    user, _, group = request["user"].partition(":")
    try:
        known = pwd.getpwnam(user) if user and not user.isdigit() else None
    except KeyError:
        known = None  # which the check of contents says
    uid = known.pw_uid if known else int(user) if user.isdigit() else 0
    gid = int(group) if group.isdigit() else known.pw_gid if known else -1
    if capable_files := sorted(capable(root, skip)):
        problems.append(
            {
                "message": f"files with capabilities: {listed(capable_files)}: whoever runs them "
                "has rights of root's",
                "fix": "take them away (setcap -r), or leave the file out",
            }
        )
    if uid and (changed := sorted(set(overwritable(root, uid, gid)))):
        problems.append(
            {
                "message": f"the image's user {request['user']} may write to {listed(changed)}, "
                "and become root by it",
                "fix": "let root own it, and nobody else write to it (chown root, chmod go-w)",
            }
        )
    own = [e.path for e in walk(root, request["program"], skip) if uid and e.may_write(uid, gid)]
    if own:
        problems.append(
            {
                "message": f"the image's user {request['user']} can overwrite its program: "
                f"{listed(own)}",
                "fix": "let root own it (COPY without --chown): what a job downloads must not be "
                "able to change what runs next",
            }
        )
    return {"problems": problems, "seen": {"set_id": rising, "world_writable": writable[:20]}}


if __name__ == "__main__":
    print(json.dumps(probe(json.loads(sys.argv[1]))))
