"""The host's proxies, certificates and package indexes, and the build secrets made from them.

Behind a company's proxy a build needs what the host has. It reaches the build as BuildKit secrets,
which end in no layer, label or history:

    network      a shell file of `export` lines; a RUN that uses the network sources it
    ca           the CA bundle, PEM
    apt          an apt.conf, named by APT_CONFIG in `network`
    apt-sources  the host's Debian mirrors for the image's suite, one line each

All four lie under /run/secrets inside a RUN. A host without such settings gives fewer of them, and
a RUN without any of them uses the image's own defaults.

An index on the host's disk (a `file:` index, a folder of wheels) is left out: a build cannot reach
it, and a lock made from it could not be installed elsewhere.
"""

from __future__ import annotations

import configparser
import netrc
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from builder.core import project, web
from builder.core.display import address
from builder.core.errors import InputError
from builder.core.files import parsed
from builder.core.web import Client

PYPROJECT: Final = "pyproject.toml"
PINNED: Final = "BUILDER_PINNED"
"""In the environment of uv: BuildNetwork.pinned, as NAME=URL."""
LINUX: Final = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
}
"""The values of markers in an image."""
SECRETS_FOLDER: Final = "/run/secrets"
MAX_SECRET_BYTES: Final = 500 * 1024
"""BuildKit refuses a larger secret (moby/buildkit, session/secrets: MaxSecretSize)."""

_CA_VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_CA_FILES: Final = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
)
"""The bundle's places on Debian, Fedora and openSUSE."""
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?P<kind>(?:TRUSTED )?CERTIFICATE)-----.+?-----END (?P=kind)-----", re.DOTALL
)
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

Login = tuple[str, str]


@dataclass(frozen=True)
class BuildNetwork:
    """The host's network configuration. It holds credentials: never print or store it."""

    ca: Path | None = None
    proxies: tuple[tuple[str, str], ...] = ()
    """By the variables' names in lower case."""
    index: str | None = None
    extra_indexes: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    """Those that may show any certificate."""
    index_named: str = ""
    extra_named: str = ""
    """`index_named` and `extra_named`: the variable or the file that names the indexes."""
    pinned: tuple[tuple[str, str], ...] = ()
    """Packages that come from one index alone, each with it: `tool.uv.sources` of the project."""

    def __repr__(self) -> str:
        return f"BuildNetwork({', '.join(self.summary()) or 'nothing special'})"

    def summary(self) -> tuple[str, ...]:
        """Return a line for each setting, without credentials (for `builder doctor`)."""
        return (
            *((f"CA bundle {self.ca}",) if self.ca else ()),
            *(f"{name} {without_login(value)}" for name, value in self.proxies),
            *((f"Python index {without_login(self.index)}",) if self.index else ()),
            *(f"extra index {without_login(url)}" for url in self.extra_indexes),
            *(f"index of {name} {without_login(url)}" for name, url in self.pinned),
        )

    def indexes(self, package: str) -> tuple[str, ...]:
        """Return the indexes that uv asks for a package, in its order; none for PyPI alone."""
        if only := tuple(url for name, url in self.pinned if name == package):
            return only
        return (*self.extra_indexes, *((self.index,) if self.index else ()))

    def index_of(self, wheel: str) -> tuple[str, str]:
        """Return the index that has the address of a wheel, and the variable or file that names it.

        An index may keep its files on another host; then it is the first one, as uv asks them.
        """
        known = [(url, PYPROJECT) for _, url in self.pinned]
        known += [(url, self.extra_named) for url in self.extra_indexes]
        known += [(self.index, self.index_named)] if self.index else []
        listed = [(without_login(url), named) for url, named in known]
        return max(
            listed, key=lambda each: len(os.path.commonpath([each[0], wheel])), default=(wheel, "")
        )

    def secrets(
        self, apt_settings: Sequence[tuple[str, str]] = (), sources: str = ""
    ) -> dict[str, bytes]:
        """Return the build's secrets by id.

        apt_settings: what the host's apt needs for the network. sources: a sources.list that takes
        the place of the image's own; "" leaves that. Raises InputError where the CA bundle is not
        one.
        """
        apt = list(apt_settings)
        if self.ca:
            apt.append(("Acquire::https::CaInfo", f"{SECRETS_FOLDER}/ca"))
        if sources:
            apt.append(("Dir::Etc::sourcelist", f"{SECRETS_FOLDER}/apt-sources"))
            apt.append(("Dir::Etc::sourceparts", "-"))
        variables = self._variables(f"{SECRETS_FOLDER}/ca")
        if apt:  # only root can read secrets: apt must not change to its download user
            apt.append(("APT::Sandbox::User", "root"))
            variables["APT_CONFIG"] = f"{SECRETS_FOLDER}/apt"
        lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        secrets = {
            "network": "".join(lines).encode(),
            "ca": read_bundle(self.ca) if self.ca else b"",
            "apt": "".join(f'{name} "{value}";\n' for name, value in apt).encode(),
            "apt-sources": sources.encode(),
        }
        return {name: content for name, content in secrets.items() if content}

    def host_environment(self) -> dict[str, str]:
        """Return the variables for uv on the host, beside its environment.

        Index, proxies and CA are those of a build, so that a build can fetch what is locked.
        """
        pins = " ".join(f"{name}={url}" for name, url in self.pinned)
        return self._variables(str(self.ca)) | ({PINNED: pins} if pins else {})

    def with_login(self, address: str) -> str:
        """Return an address with the user and password of the index on the same host, if it has
        them. uv leaves them out of what it writes."""
        parts = urlsplit(address)
        pinned = (url for _, url in self.pinned)
        for index in map(urlsplit, filter(None, (self.index, *self.extra_indexes, *pinned))):
            login = index.netloc.rpartition("@")[0]
            same = (index.scheme, index.hostname, index.port)
            if login and same == (parts.scheme, parts.hostname, parts.port):
                netloc = f"{login}@{parts.netloc.rpartition('@')[2]}"
                return parts._replace(netloc=netloc).geturl()
        return address

    def client(self, connect: float = 20.0, read: float = 60.0) -> Client:
        """Return a client for the package indexes, which trusts what uv trusts. Times in
        seconds."""
        context = web.trust(str(self.ca) if self.ca else None)
        return web.Client(connect=connect, read=read, context=context, unchecked=self.trusted_hosts)

    def _variables(self, ca: str) -> dict[str, str]:
        # Some clients read the names of proxies in lower case, others in upper case.
        variables = {
            spelling: value for name, value in self.proxies for spelling in (name, name.upper())
        }
        if self.ca:
            variables |= dict.fromkeys(_CA_VARIABLES, ca)
        if self.index:
            variables |= {"UV_DEFAULT_INDEX": self.index, "PIP_INDEX_URL": self.index}
        if self.extra_indexes:
            extra = " ".join(self.extra_indexes)
            variables |= {"UV_INDEX": extra, "PIP_EXTRA_INDEX_URL": extra}
        if self.trusted_hosts:
            hosts = " ".join(self.trusted_hosts)
            variables |= {"UV_INSECURE_HOST": hosts, "PIP_TRUSTED_HOST": hosts}
        return variables


def discover(
    environment: Mapping[str, str] | None = None, root: Path = Path("/"), home: Path | None = None
) -> BuildNetwork:
    """Return the host's configuration: the environment, then each tool's files.

    Each tool's files, under `root` and `home`, have the tool's own order of precedence. Raises
    InputError for a CA bundle that is named and missing, and for a file that cannot be read.
    """
    env = os.environ if environment is None else environment
    home = Path(env.get("HOME") or Path.home()) if home is None else home
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    pip = _pip_settings(env, root, config)
    uv, own = _uv_settings(env, root, config), _project_settings()
    logins = read_logins([Path(env.get("NETRC") or home / ".netrc")])
    (index_named, index), (extra_named, extra_indexes) = _indexes(env, pip, uv, own)
    proxies = {name: env.get(name) or env.get(name.upper()) or "" for name in _PROXIES}
    trusted = [env.get("UV_INSECURE_HOST"), uv.get("allow-insecure-host"), pip.get("trusted-host")]
    return BuildNetwork(
        ca=_ca(env, root, pip),
        proxies=tuple((name, value) for name, value in proxies.items() if value),
        index=with_login(index, logins) if index else None,
        extra_indexes=tuple(with_login(url, logins) for url in extra_indexes),
        trusted_hosts=tuple(dict.fromkeys(host for hosts in trusted for host in _words(hosts))),
        index_named=index_named,
        extra_named=extra_named,
        pinned=tuple((name, with_login(url, logins)) for name, url in _pinned(own)),
    )


# --- certificates -------------------------------------------------------------------------------


def read_bundle(path: Path) -> bytes:
    """Return the certificates of a PEM bundle, without comments, so that it fits into a secret.

    Raises InputError for a bundle that cannot be read, has no certificate, or is too large.
    """

    def bad_bundle(problem: str, file: str) -> InputError:
        return InputError(f"the CA bundle {path} {problem}", f"point SSL_CERT_FILE at a {file}")

    try:
        certificates = [match.group() for match in _CERTIFICATE.finditer(path.read_bytes())]
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise bad_bundle(what, "PEM file that this user may read") from error
    if not certificates:
        raise bad_bundle("holds no certificate", "PEM file with -----BEGIN CERTIFICATE----- blocks")
    bundle = b"\n".join([*certificates, b""])
    if len(bundle) > MAX_SECRET_BYTES:
        what = f"has {len(bundle):,} bytes, a build takes {MAX_SECRET_BYTES:,}"
        raise bad_bundle(what, "smaller bundle with the certificates that are needed")
    return bundle


def _ca(env: Mapping[str, str], root: Path, pip: Mapping[str, str]) -> Path | None:
    named = {name: env.get(name) for name in _CA_VARIABLES} | {"pip's `cert`": pip.get("cert")}
    for name, value in named.items():
        if value and not Path(value).is_file():
            raise InputError(
                f"{name} names the CA bundle {value}, which does not exist",
                f"unset it, or point {name} at a PEM file",
            )
        if value:
            return Path(value)
    return next((root / file for file in _CA_FILES if (root / file).is_file()), None)


# --- Python indexes -----------------------------------------------------------------------------


def _pip_settings(env: Mapping[str, str], root: Path, config: Path) -> dict[str, str]:
    """Return pip's settings for `pip install`: global, user, PIP_CONFIG_FILE, the environment; a
    later one wins."""
    settings: dict[str, str] = {}
    own = env.get("PIP_CONFIG_FILE") or ""
    files = [root / "etc/pip.conf", config / "pip/pip.conf", *([Path(own)] if own else [])]
    for file in filter(Path.is_file, [] if own == os.devnull else files):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text())
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise _unreadable(file, error) from None
        for section in filter(parser.has_section, ("global", "install")):
            # pip takes `index_url` for `index-url`
            settings |= {name.replace("_", "-"): text for name, text in parser.items(section)}
    for name in ("cert", "index-url", "extra-index-url", "trusted-host"):
        if value := env.get("PIP_" + name.upper().replace("-", "_")):
            settings[name] = value
    return settings


def _uv_settings(env: Mapping[str, str], root: Path, config: Path) -> dict[str, object]:
    """Return uv's settings outside of a project: UV_CONFIG_FILE, else the system's and the user's.

    The user's win over the system's.
    """
    files = [root / "etc/uv/uv.toml", config / "uv/uv.toml"]
    if env.get("UV_CONFIG_FILE"):
        files = [Path(env["UV_CONFIG_FILE"])]
    settings: dict[str, object] = {}
    for file in filter(Path.is_file, files):
        try:
            settings |= parsed(tomllib.loads, file.read_text())
        except (OSError, ValueError) as error:
            raise _unreadable(file, error) from None
    return settings


def _project_settings() -> dict[str, Any]:
    try:
        file = project.find_root() / PYPROJECT
        tool = parsed(tomllib.loads, file.read_text(encoding="utf-8")).get("tool", {})
        return dict(tool.get("uv", {}))
    except (InputError, FileNotFoundError):
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise _unreadable(Path(PYPROJECT), error) from None


def _tables(settings: Mapping[str, object]) -> list[dict[str, Any]]:
    return [table for table in _words(settings.get("index")) if isinstance(table, dict)]


def _pinned(own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the packages that the project takes from one index, each with it."""
    urls = {table.get("name"): _index_url(table.get("url")) for table in _tables(own)}
    sources = own.get("sources")
    for name, source in sources.items() if isinstance(sources, dict) else ():
        for each in source if isinstance(source, list) else [source]:
            if not isinstance(each, dict) or each.keys() & {"extra", "group"}:
                continue  # an image has neither
            try:
                marker = Marker(str(each.get("marker") or "os_name == 'posix'"))
            except ValueError as error:
                raise _unreadable(Path(PYPROJECT), error) from None
            if marker.evaluate(dict(LINUX)) and (url := urls.get(each.get("index"))):
                yield canonicalize_name(name), url
                break


def _indexes(
    env: Mapping[str, str],
    pip: Mapping[str, str],
    uv: Mapping[str, object],
    own: Mapping[str, object],
) -> tuple[tuple[str, str | None], tuple[str, list[str]]]:
    """Return the default index and the extra ones, each with what names them: the project's first,
    uv's own configuration, then pip's. own: the project's."""
    open_to_all = [[t for t in _tables(each) if not t.get("explicit")] for each in (own, uv)]
    ours, named = [[(bool(t.get("default")), t.get("url")) for t in each] for each in open_to_all]
    defaults: list[tuple[str, object]] = [
        *((name, env.get(name)) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")),
        *((PYPROJECT, url) for default, url in ours if default),
        *(("uv.toml", url) for default, url in named if default),
        ("uv.toml", uv.get("index-url")),
        (_pip_source(env, "PIP_INDEX_URL"), pip.get("index-url")),
    ]
    extras: list[tuple[str, list[Any]]] = [
        *((name, _words(env.get(name))) for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL")),
        (PYPROJECT, [url for default, url in ours if not default]),
        ("uv.toml", [url for default, url in named if not default]),
        ("uv.toml", _words(uv.get("extra-index-url"))),
        (_pip_source(env, "PIP_EXTRA_INDEX_URL"), _words(pip.get("extra-index-url"))),
    ]
    source, default = next((each for each in defaults if each[1]), ("", ""))
    reachable = (
        (name, [url for each in group if (url := _index_url(each))]) for name, group in extras
    )
    return (source, _index_url(default)), next((each for each in reachable if each[1]), ("", []))


def _pip_source(env: Mapping[str, str], variable: str) -> str:
    return variable if env.get(variable) else "pip.conf"


def _index_url(index: object) -> str | None:
    """Return the URL of an index written `NAME=URL` or `URL`; None for one on the host's disk."""
    match = re.fullmatch(r"(?:[\w.-]*=)?(https?://.+)", str(index))
    if match and not web.joined("", match[1]):
        raise InputError(
            f"the Python index {address(match[1])} is no address",
            "correct it: UV_DEFAULT_INDEX, UV_INDEX, or the index of uv.toml or pip.conf",
        )
    return match[1] if match else None


def _words(value: object) -> list[Any]:
    return value.split() if isinstance(value, str) else value if isinstance(value, list) else []


# --- credentials --------------------------------------------------------------------------------


def read_logins(files: Iterable[Path]) -> dict[str, Login]:
    """Return host (in apt's files also host/path) -> login, from files in netrc's form.

    Raises InputError for a file of another form.
    """
    logins: dict[str, Login] = {}
    for file in files:
        try:
            hosts = netrc.netrc(str(file)).hosts if file.is_file() else {}
        except PermissionError:
            continue  # apt's logins are often root's alone: this user goes without
        except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
            raise _unreadable(file, error) from None
        logins |= {host: (user, password or "") for host, (user, _, password) in hosts.items()}
    return logins


def with_login(url: str, logins: Mapping[str, Login]) -> str:
    """Return an address with the login of its host, unless it has one or there is none."""
    parts = urlsplit(url)
    if parts.username or not parts.hostname:
        return url
    own = f"{parts.netloc}{parts.path}"
    for machine, (user, password) in logins.items():
        bare = machine.removeprefix("https://").removeprefix("http://")
        if parts.hostname == bare or own == bare or own.startswith(bare.rstrip("/") + "/"):
            login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
            return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))
    return url


def without_login(url: str) -> str:
    return address(url).replace("***@", "")


def _unreadable(file: Path, error: Exception) -> InputError:
    """Return the reason without what the file holds: a login may stand there."""
    line = getattr(error, "lineno", None)
    at = f" (line {line})" if line else ""
    reason = getattr(error, "strerror", None) or f"it has another form{at}"
    return InputError(f"{file} cannot be read: {reason}", f"correct {file}, or move it away")
