"""Who may become root in the image, and who may change what it runs?"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from builder.image.plan import APP
from builder.prove.image import Image, listed
from builder.prove.receipts import Defect, Finding
from builder.prove.suite import Answer, Check
from builder.reading.layers import Entry

_DISTRIBUTIONS: Final = """
at bbsuid bwrap chage chfn chsh crontab dbus-daemon-launch-helper dotlockfile exim4 expiry
fusermount fusermount3 gpasswd grub2-set-bootflag krb5_child ldap_child locate lockdev mail-lock
mail-touchlock mail-unlock mlocate mount mount.cifs mount.ecryptfs_private mount.nfs newgidmap
newgrp newuidmap ntfs-3g pam_extrausers_chkpwd pam_timestamp_check passwd ping ping6 pkexec
plocate polkit-agent-helper-1 postdrop postqueue pppd proxy_child screen selinux_child slocate
ssh-agent ssh-keysign su sudo umount unix_chkpwd unix_update userhelper usernetctl utempter wall
write write.ul
"""
SET_ID: Final = frozenset(_DISTRIBUTIONS.split())
"""Programs that Debian, Fedora, Red Hat and Alpine install with a set-user-ID or set-group-ID
bit."""
CAPABLE: Final = frozenset(
    {"arping", "clockdiff", "gst-ptp-helper", "mtr-packet"}
    | {"newgidmap", "newuidmap", "ping", "traceroute6.iputils"}
)
"""Programs that distributions install with a capability."""
_SYSTEM: Final = re.compile(r"/(usr/)?(s?bin|lib(64|exec)?)/")
"""Where a distribution installs."""
_RUN: Final = re.compile(r"/(site|dist)-packages/.*\.(pyc?|pth|so[.\d]*)$")
"""What Python runs; a lock that uv leaves there is not run."""
_MODULES: Final = re.compile(r"/(site|dist)-packages(/|$)")
_ACCOUNTS: Final = re.compile(
    r"/etc/(passwd|shadow|group|sudoers|ld\.so\.(preload|conf|cache|conf\.d(/.*)?))$"
)
_LOADER: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")


def run(image: Image) -> Answer:
    user, _, group = str(image.config.get("User") or "").partition(":")
    rising, writable = sorted(_rising(image)), sorted(set(_writable(image)))
    defects: list[Defect] = []
    if user in ("", "0", "root"):
        what = "the image runs as root: its outputs would belong to root"
        defects.append(Finding(what, "end the Dockerfile with USER 1000:1000"))
    if rising:
        what = f"programs that run with another user's rights: {listed(rising)}"
        fix = "take the bit away (chmod u-s,g-s), the capability (setcap -r), or the program"
        defects.append(Defect(what, fix))
    if writable:
        what = f"everybody may write to what the image runs: {listed(writable)}"
        defects.append(Defect(what, "chmod o-w, or take the folder out of PATH or PYTHONPATH"))
    if user.isdecimal() and int(user):
        defects += _of_user(image, int(user), int(group) if group.isdecimal() else -1)
    return defects, {"note": f"USER {user or 'root'}", "set_id": rising, "writable": writable[:20]}


def _rising(image: Image) -> Iterator[str]:
    """Yield the programs by which a user gets another's rights, but for the distributions' own. In
    an image of ours those of the locked packages alone."""
    base = image.subject.base_layers if image.subject and image.has_own_base else None
    for path, entry in image.tree.files.items():
        name = posixpath.basename(path)
        is_system = bool(_SYSTEM.match(path)) and (base is None or image.tree.layer[path] in base)
        set_id = entry.mode & 0o6000 and entry.mode & 0o111
        if (set_id and not (is_system and name in SET_ID)) or (
            entry.capable and not (is_system and name in CAPABLE and not image.is_ours)
        ):
            yield path


def _writable(image: Image) -> Iterator[str]:
    """Yield what everybody may change in folders that programs or modules are looked for in, or the
    folder in which everybody could make such a folder."""
    tree = image.tree
    searched = {tree.resolve(folder) for folder in image.search_path}
    for path, entry in tree.files.items():
        is_searched = posixpath.dirname(path) in searched or _RUN.search(path)
        if entry.mode & 0o002 and not entry.link and is_searched:
            yield path
    for path, entry in tree.folders.items():
        if entry.mode & 0o002 and (path in searched or _MODULES.search(path)):
            yield path
    modules = image.environment.get("PYTHONPATH", "").split(":")
    for folder in (*image.search_path, *modules):
        if folder.startswith("/") and tree.resolve(folder) is None:
            while (parent := tree.resolve(folder)) is None:
                folder = posixpath.dirname(folder)
            if parent in tree.folders and tree.folders[parent].mode & 0o002:
                yield parent


def _of_user(image: Image, user: int, group: int) -> Iterator[Defect]:
    """Yield what the image's user may change and should not."""
    tree = image.tree

    def may_write(entry: Entry) -> bool:
        """An owner can give himself the right."""
        rights = entry.mode & 0o002 or (entry.mode & 0o020 and entry.gid == group)
        return not entry.link and (entry.uid == user or bool(rights))

    present = {**tree.files, **tree.folders}
    libraries = {posixpath.dirname(each.path) for each in image.content.libraries}
    trusted = {*_LOADER, *(libraries if image.has_own_base else ())}
    accounts = sorted(
        path
        for path, entry in present.items()
        if (_ACCOUNTS.match(path) or path in trusted) and may_write(entry)
    )
    if accounts:
        yield Defect(
            f"the image's user {user} can change accounts or the loader: "
            f"{listed(accounts)}: whoever may do that becomes root",
            "let root own them (chown root, chmod go-w)",
        )
    program = [path for path in present if path == APP or path.startswith(f"{APP}/")]
    own = sorted(path for path in program if image.subject and may_write(present[path]))
    if own:
        yield Defect(
            f"the image's user {user} can overwrite its program: {listed(own)}",
            "let root own it (COPY without --chown): what a job downloads must not be able to "
            "change what runs next",
        )


CHECK = Check.of("permissions", 3, run)
