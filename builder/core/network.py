"""How the host reaches package indexes and mirrors, and the build secrets made from that.

Behind a company's proxy a build needs the host's CA bundle, proxies, Python index and Debian
mirrors. They reach it as four BuildKit secrets, which end in no layer, label or history:

    network      a shell file of `export` lines; a RUN that uses the network sources it
    ca           the CA bundle, PEM
    apt          an apt.conf, named by APT_CONFIG in `network`
    apt-sources  the host's Debian mirrors for the image's suite, one line each

All four lie under /run/secrets inside a RUN. A host without such settings gives fewer of them, and
a RUN without any of them uses the image's own defaults.

An index on the host's disk (a `file:` index, a folder of wheels) is left out: a build cannot reach
it, and a lock made from it could not be installed elsewhere.
"""

import configparser
import netrc
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from builder.core.display import address
from builder.core.errors import InputError, OutsideError
from builder.core.mirrors import Mirror, mirror

if TYPE_CHECKING:
    from builder.core.web import Client

SECRETS_FOLDER = "/run/secrets"
# BuildKit refuses a larger secret (moby/buildkit, session/secrets: MaxSecretSize).
MAX_SECRET_BYTES = 500 * 1024

_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
# The bundle's places on Debian, Fedora and openSUSE.
_CA_FILES = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
)
_CERTIFICATE = re.compile(
    rb"-----BEGIN (?P<kind>(?:TRUSTED )?CERTIFICATE)-----.+?-----END (?P=kind)-----", re.DOTALL
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# The settings of apt that a build also needs to reach a mirror. Those that name a path of the host
# (client certificates, programs that find a proxy) are left out: a build does not have these files.
_APT_SETTING = re.compile(
    r"^(Acquire::(?:https?::(?!(?:.*::)?(?:CaInfo|CaPath|SslCert|SslKey|Proxy-?Auto-?Detect)\b).+"
    r"|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)) \"(.+)\";$",
    re.IGNORECASE,
)
# Present in every Debian root since 12. It is named because newer releases trust no key by default.
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class BuildNetwork:
    """The host's network configuration. It holds credentials: never print or store it."""

    ca: Path | None = None
    proxies: tuple[tuple[str, str], ...] = ()
    index: str | None = None
    extra_indexes: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    tuning: tuple[tuple[str, str], ...] = ()
    apt_settings: tuple[tuple[str, str], ...] = ()
    mirror: Mirror | None = None
    mirror_logins: tuple[tuple[str, tuple[str, str]], ...] = ()

    def __repr__(self) -> str:
        return f"BuildNetwork({', '.join(self.summary()) or 'nothing special'})"

    def summary(self) -> tuple[str, ...]:
        """A line for each thing that was found, without credentials (for `builder doctor`)."""
        return (
            *((f"CA bundle {self.ca}",) if self.ca else ()),
            *(f"{name} {_without_credentials(value)}" for name, value in self.proxies),
            *((f"Python index {_without_credentials(self.index)}",) if self.index else ()),
            *(f"extra index {_without_credentials(url)}" for url in self.extra_indexes),
            *(
                (f"Debian mirror {_without_credentials(self.mirror.archive.uri)}",)
                if self.mirror
                else ()
            ),
        )

    def secrets(self, sources: str = "") -> dict[str, bytes]:
        """The build's secrets by id.

        sources: the host's Debian mirrors for the image's suite, one line each, which take the
        place of the image's own (builder.core.debian.sources). "" leaves the image's own.
        Raises InputError where the CA bundle is not one.
        """
        apt = self._apt_configuration(bool(sources))
        files = {
            "ca": read_bundle(self.ca) if self.ca else b"",
            "apt": apt.encode(),
            "apt-sources": sources.encode(),
        }
        variables = {
            **self._variables(f"{SECRETS_FOLDER}/ca"),
            **({"APT_CONFIG": f"{SECRETS_FOLDER}/apt"} if apt else {}),
        }
        network = "".join(f"export {name}={shlex.quote(v)}\n" for name, v in variables.items())
        return {
            name: content
            for name, content in {"network": network.encode(), **files}.items()
            if content
        }

    def with_login(self, url: str) -> str:
        """A mirror's address with the user and the password that apt's auth.conf has for it."""
        return _with_login(url, dict(self.mirror_logins))

    def host_environment(self) -> dict[str, str]:
        """Variables for uv on the host, beside its environment.

        Index, proxies and CA are those of a build, so that a build can fetch what is locked.
        """
        return self._variables(str(self.ca))

    def client(self, connect: float = 20.0, read: float = 60.0) -> "Client":
        """A client for the package indexes, which trusts what uv trusts here. Times in seconds."""
        from builder.core import web

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
        return variables | dict(self.tuning)

    def _apt_configuration(self, with_sources: bool) -> str:
        settings = list(self.apt_settings)
        if self.ca:
            settings.append(("Acquire::https::CaInfo", f"{SECRETS_FOLDER}/ca"))
        if with_sources:
            settings.append(("Dir::Etc::sourcelist", f"{SECRETS_FOLDER}/apt-sources"))
            settings.append(("Dir::Etc::sourceparts", "-"))
        if settings:
            # Only root can read secrets: apt must not change to its download user.
            settings.append(("APT::Sandbox::User", "root"))
        return "".join(f'{name} "{value}";\n' for name, value in settings)


def discover(
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    home: Path | None = None,
) -> BuildNetwork:
    """The host's configuration: the environment, then each tool's files under `root` and `home`.

    Each tool's files have the tool's own order of precedence. Raises InputError for a CA bundle
    that is named and missing, and for a file that cannot be read.
    """
    env = os.environ if environment is None else environment
    home = Path(env.get("HOME") or Path.home()) if home is None else home
    pip = _pip_settings(env, root, home)
    uv = _uv_settings(env, root, home)
    logins = _logins([Path(env.get("NETRC") or home / ".netrc")])
    apt_logins = _logins(
        [root / "etc/apt/auth.conf", *sorted((root / "etc/apt/auth.conf.d").glob("*.conf"))]
    )
    default, extra = _indexes(env, pip, uv)
    timeout = env.get("UV_HTTP_TIMEOUT")
    strategy = env.get("UV_INDEX_STRATEGY") or uv.get("index-strategy")
    return BuildNetwork(
        ca=_ca(env, root, pip),
        proxies=tuple(
            (name, value)
            for name in _PROXIES
            if (value := env.get(name) or env.get(name.upper()) or "")
        ),
        index=_with_login(default, logins) if default else None,
        extra_indexes=tuple(_with_login(url, logins) for url in extra),
        trusted_hosts=tuple(
            dict.fromkeys(
                [
                    *env.get("UV_INSECURE_HOST", "").split(),
                    *_words(uv.get("allow-insecure-host")),
                    *_words(pip.get("trusted-host")),
                ]
            )
        ),
        tuning=(
            *((("UV_HTTP_TIMEOUT", timeout),) if timeout else ()),
            *((("UV_INDEX_STRATEGY", str(strategy)),) if strategy else ()),
        ),
        apt_settings=_apt_settings(env),
        mirror=_mirror(root / "etc/apt"),
        mirror_logins=tuple(apt_logins.items()),
    )


def read_bundle(path: Path) -> bytes:
    """The certificates of a PEM bundle. Comments are left out, so that it fits into a secret."""
    try:
        found = [match.group() for match in _CERTIFICATE.finditer(path.read_bytes())]
    except OSError as error:
        raise InputError(
            f"the CA bundle {path} cannot be read: {error.strerror}",
            "point SSL_CERT_FILE at a PEM file that this user may read",
        ) from error
    bundle = b"\n".join([*found, b""])
    if not found:
        raise InputError(
            f"the CA bundle {path} holds no certificate",
            "point SSL_CERT_FILE at a PEM file with -----BEGIN CERTIFICATE----- blocks",
        )
    if len(bundle) > MAX_SECRET_BYTES:
        raise InputError(
            f"the CA bundle {path} has {len(bundle):,} bytes, a build takes {MAX_SECRET_BYTES:,}",
            "point SSL_CERT_FILE at a smaller bundle with the certificates that are needed",
        )
    return bundle


# --- certificates -------------------------------------------------------------------------------


def _ca(env: Mapping[str, str], root: Path, pip: Mapping[str, str]) -> Path | None:
    named = [(name, env[name]) for name in _CA_VARIABLES if env.get(name)]
    if "cert" in pip:
        named.append(("pip's `cert`", pip["cert"]))
    for name, value in named:
        if not Path(value).is_file():
            raise InputError(
                f"{name} names the CA bundle {value}, which does not exist",
                f"unset it, or point {name} at a PEM file",
            )
        return Path(value)
    return next((root / file for file in _CA_FILES if (root / file).is_file()), None)


# --- Python indexes -----------------------------------------------------------------------------


def _pip_settings(env: Mapping[str, str], root: Path, home: Path) -> dict[str, str]:
    """pip's settings for `pip install`.

    In the order of pip's documentation ("Configuration"), a later one wins: global, user, site,
    PIP_CONFIG_FILE, the environment.
    """
    settings: dict[str, str] = {}
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        *(Path(folder) / "pip/pip.conf" for folder in _xdg_folders(env, root)),
        root / "etc/pip.conf",
        home / ".pip/pip.conf",
        config / "pip/pip.conf",
        *([Path(env["VIRTUAL_ENV"]) / "pip.conf"] if env.get("VIRTUAL_ENV") else []),
    ]
    if env.get("PIP_CONFIG_FILE") == os.devnull:
        files = []
    elif env.get("PIP_CONFIG_FILE"):
        files.append(Path(env["PIP_CONFIG_FILE"]))
    for file in filter(Path.is_file, files):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text())
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise _unreadable(file, error) from None
        for section in ("global", "install"):
            if parser.has_section(section):
                # pip takes `index_url` for `index-url`
                settings |= {k.replace("_", "-"): v for k, v in parser.items(section)}
    for name in ("cert", "index-url", "extra-index-url", "trusted-host"):
        if value := env.get("PIP_" + name.upper().replace("-", "_")):
            settings[name] = value
    return settings


def _uv_settings(env: Mapping[str, str], root: Path, home: Path) -> dict[str, object]:
    """uv's settings outside of a project: UV_CONFIG_FILE, else the system's and the user's.

    The user's win over the system's.
    """
    if env.get("UV_NO_CONFIG"):
        return {}
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    system = [
        *(Path(folder) / "uv/uv.toml" for folder in _xdg_folders(env, root)),
        root / "etc/uv/uv.toml",
    ]
    named = env.get("UV_CONFIG_FILE")
    files = [Path(named)] if named else [*system, config / "uv/uv.toml"]
    settings: dict[str, object] = {}
    for file in filter(Path.is_file, files):
        try:
            read = tomllib.loads(file.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise _unreadable(file, error) from None
        pip = read.pop("pip", {})
        settings |= read | (pip if isinstance(pip, dict) else {})
    return settings


def _indexes(
    env: Mapping[str, str], pip: Mapping[str, str], uv: Mapping[str, object]
) -> tuple[str | None, tuple[str, ...]]:
    """The default index and the extra ones: uv's own configuration first, then pip's."""
    tables = [table for table in _list(uv.get("index")) if isinstance(table, dict)]
    named = [(bool(t.get("default")), f"{t.get('name', '')}={t.get('url', '')}") for t in tables]
    defaults = [
        env.get("UV_DEFAULT_INDEX"),
        env.get("UV_INDEX_URL"),
        *(index for default, index in named if default),
        uv.get("index-url"),
        pip.get("index-url"),
    ]
    extras = [
        env.get("UV_INDEX", "").split(),
        env.get("UV_EXTRA_INDEX_URL", "").split(),
        [index for default, index in named if not default],
        _words(uv.get("extra-index-url")),
        _words(pip.get("extra-index-url")),
    ]
    first = next((str(index) for index in defaults if index), "")
    reachable = ([url for i in group if (url := _index_url(env, i))] for group in extras)
    return _index_url(env, first), tuple(next(filter(None, reachable), ()))


def _index_url(env: Mapping[str, str], index: str) -> str | None:
    """The URL of an index that is written `NAME=URL` or `URL`; None for one on the host's disk.

    It carries the credentials that uv takes from UV_INDEX_<NAME>_USERNAME and _PASSWORD.
    """
    match = re.fullmatch(r"(?:([\w.-]*)=)?(https?://.+)", index)
    if not match:
        return None
    name = re.sub(r"[^A-Z0-9]", "_", (match[1] or "").upper())
    user, password = (env.get(f"UV_INDEX_{name}_{key}", "") for key in ("USERNAME", "PASSWORD"))
    return _login_url(match[2], user, password) if name and (user or password) else match[2]


# --- apt ----------------------------------------------------------------------------------------


def _apt_settings(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The settings of apt for the network, as `apt-config` prints them; none without apt."""
    command = ["apt-config", "dump", "Acquire"]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(
        (match[1], match[2])
        for line in done.stdout.splitlines()
        if (match := _APT_SETTING.match(line))
    )


def _mirror(etc: Path) -> Mirror | None:
    try:
        return mirror(etc)
    except (OutsideError, PermissionError):
        return None


# --- credentials --------------------------------------------------------------------------------


def _logins(files: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Host (in apt's files also host/path) -> user and password, from files in netrc's form."""
    logins: dict[str, tuple[str, str]] = {}
    for file in files:
        try:
            hosts = netrc.netrc(str(file)).hosts if file.is_file() else {}
        except PermissionError:
            continue  # apt's logins are often root's alone: this user goes without
        except (OSError, UnicodeDecodeError, netrc.NetrcParseError) as error:
            raise _unreadable(file, error) from None
        logins |= {host: (user, password or "") for host, (user, _, password) in hosts.items()}
    return logins


def _with_login(url: str, logins: Mapping[str, tuple[str, str]]) -> str:
    parts = urlsplit(url)
    if parts.username or not parts.hostname:
        return url
    here = f"{parts.netloc}{parts.path}"
    for machine, (user, password) in logins.items():
        bare = machine.removeprefix("https://").removeprefix("http://")
        if parts.hostname == bare or here == bare or here.startswith(bare.rstrip("/") + "/"):
            return _login_url(url, user, password)
    return url


def _login_url(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))


def _without_credentials(url: str) -> str:
    return address(url).replace("***@", "")


# --- small things -------------------------------------------------------------------------------


def _xdg_folders(env: Mapping[str, str], root: Path) -> list[str]:
    return [f for f in env.get("XDG_CONFIG_DIRS", "").split(":") if f] or [str(root / "etc/xdg")]


def _words(value: object) -> list[str]:
    return value.split() if isinstance(value, str) else [str(item) for item in _list(value)]


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _unreadable(file: Path, error: Exception) -> InputError:
    """The reason without what the file holds: a login may stand there."""
    line = getattr(error, "lineno", None)
    at = f" (line {line})" if line else ""
    reason = getattr(error, "strerror", None) or f"it has another form{at}"
    return InputError(f"{file} cannot be read: {reason}", f"correct {file}, or move it away")
