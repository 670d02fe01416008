"""The host's proxies, certificates and indexes, and the build secrets made from them."""

import os
import subprocess
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.config.network import (
    MAX_SECRET_BYTES,
    BuildNetwork,
    discover,
    read_bundle,
)
from builder.core.errors import InputError

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def host(tmp_path: Path) -> "Host":
    return Host(tmp_path)


class Host:
    """A small machine: a root, a home, an environment."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home = folder / "root", folder / "home"
        self.home.mkdir()

    def write(self, path: str, text: str, base: Path | None = None) -> Path:
        file = (base or self.root) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def discover(self, **environment: str) -> BuildNetwork:
        return discover(environment, self.root, self.home)


def exported(network: BuildNetwork) -> dict[str, str]:
    """The variables of a RUN that sourced the `network` secret, as a real shell reads it."""
    script = network.secrets().get("network", b"").decode() + "env -0\n"
    output = subprocess.run(
        ["sh", "-c", script], env={"PATH": os.environ["PATH"]}, check=True, capture_output=True
    )
    pairs = [item.partition("=") for item in output.stdout.decode().split("\0") if item]
    return {name: value for name, _, value in pairs}


# --- certificates


def test_every_client_gets_the_bundle_of_the_environment_then_pips_then_the_systems(
    host: Host,
) -> None:
    assert host.discover() == BuildNetwork() and host.discover().secrets() == {}
    system = host.write("etc/ssl/certs/ca-certificates.crt", f"a comment\n{PEM}")
    network = host.discover()
    assert network.ca == system and network.secrets()["ca"].decode() == PEM
    assert 'Acquire::https::CaInfo "/run/secrets/ca";' in network.secrets()["apt"].decode()
    seen = exported(network)
    for name in ("SSL_CERT_FILE", "PIP_CERT", "CURL_CA_BUNDLE"):
        assert seen[name] == "/run/secrets/ca"
    assert network.host_environment()["SSL_CERT_FILE"] == str(network.ca)
    piped, named = host.write("pip.pem", PEM), host.write("named.pem", PEM)
    host.write("etc/pip.conf", f"[global]\ncert = {piped}\n")
    assert host.discover().ca == piped
    assert host.discover(REQUESTS_CA_BUNDLE=str(named)).ca == named


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("no certificate here", "holds no certificate"),
        (PEM.replace("MIIB", "A" * MAX_SECRET_BYTES), "a build takes 512,000"),
    ],
)
def test_a_bundle_that_cannot_be_one(
    content: str, complaint: str, host: Host, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="SSL_CERT_FILE names the CA bundle /no/such") as error:
        host.discover(SSL_CERT_FILE="/no/such.pem")
    assert "unset it" in error.value.fix
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(content)
    with pytest.raises(InputError, match=complaint):
        read_bundle(bundle)


# --- proxies


def test_proxies_reach_the_build_in_both_spellings(host: Host) -> None:
    seen = exported(host.discover(HTTPS_PROXY="http://u:p@proxy:3128", no_proxy="localhost,.corp"))
    assert seen["https_proxy"] == seen["HTTPS_PROXY"] == "http://u:p@proxy:3128"
    assert seen["no_proxy"] == seen["NO_PROXY"] == "localhost,.corp"
    for proxy in ("me:s3cret@proxy:1", "http://me:s3/cret@proxy:1"):  # what `builder doctor` shows
        (line,) = host.discover(HTTPS_PROXY=proxy).summary()
        assert "https_proxy" in line and "proxy:1" in line and "cret" not in line
    assert "http_proxy" not in seen


# --- Python indexes


def test_uvs_configuration_wins_over_pips_whose_files_have_their_order(host: Host) -> None:
    host.write("etc/pip.conf", "[global]\nindex-url = https://global/simple\n")
    assert host.discover().index == "https://global/simple"
    host.write(".config/pip/pip.conf", "[global]\nindex-url = https://user/simple\n", host.home)
    assert host.discover().index == "https://user/simple"
    own = host.write("own.conf", "[install]\nindex_url = https://own/simple\n")
    assert host.discover(PIP_CONFIG_FILE=str(own)).index == "https://own/simple"
    assert host.discover(PIP_INDEX_URL="https://env/simple").index == "https://env/simple"
    assert host.discover(PIP_CONFIG_FILE=os.devnull).index is None
    host.write(
        ".config/uv/uv.toml",
        '[[index]]\nname = "corp"\nurl = "https://corp/simple"\ndefault = true\n'
        '[[index]]\nname = "more-wheels"\nurl = "https://more/simple"\n',
        host.home,
    )
    network = host.discover()
    assert network.index == "https://corp/simple"
    assert network.extra_indexes == ("https://more/simple",)
    network = host.discover(
        UV_DEFAULT_INDEX="x=https://a/simple", UV_INDEX="https://b/s https://c/s"
    )
    seen, on_host = exported(network), network.host_environment()
    assert seen["UV_DEFAULT_INDEX"] == seen["PIP_INDEX_URL"] == on_host["UV_DEFAULT_INDEX"]
    assert seen["PIP_EXTRA_INDEX_URL"] == on_host["UV_INDEX"] == "https://b/s https://c/s"
    network = host.discover(UV_DEFAULT_INDEX="/srv/simple", UV_INDEX="file:///srv https://b/s")
    assert (network.index, network.extra_indexes) == (None, ("https://b/s",))


def test_the_projects_indexes_come_before_the_users_and_after_the_environments(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "builder.toml").touch()
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    table = '[[{}index]]\nname = "{}"\nurl = "https://{}/s"\n'
    text = table.format("tool.uv.", "all", "all") + table.format("tool.uv.", "one", "one")
    pins = """[tool.uv.sources]
Torch_Vision = [
  { index = "all", marker = "sys_platform == 'darwin'" },
  { index = "all", extra = "cpu" },
  { index = "one", marker = "sys_platform == 'linux'" },
]
mine = { path = "." }
"""
    (tmp_path / "pyproject.toml").write_text(f"{text}explicit = true\n{pins}")
    user = table.format("", "user", "user") + table.format("", "none", "none")
    host.write(".config/uv/uv.toml", f"{user}explicit = true\n", host.home)
    network = host.discover()
    assert (network.extra_indexes, network.extra_named) == (("https://all/s",), "pyproject.toml")
    assert network.indexes("torch-vision") == ("https://one/s",)
    assert network.host_environment()["BUILDER_PINNED"] == "torch-vision=https://one/s"
    assert network.index_of("https://one/s/a.whl") == ("https://one/s", "pyproject.toml")
    assert "index of torch-vision https://one/s" in network.summary()
    assert host.discover(UV_INDEX="https://env/s").indexes("numpy") == ("https://env/s",)
    (tmp_path / "pyproject.toml").write_text("tool = 1\n")
    with pytest.raises(InputError, match=r"pyproject.toml cannot be read"):
        host.discover()
    (tmp_path / "pyproject.toml").unlink()
    assert host.discover().extra_indexes == ("https://user/s",), "explicit ones are no others'"


@pytest.mark.parametrize("url", ["http://bob:pw@[::1/simple", "https://bob:pw@host:99999/simple"])
def test_an_index_that_is_no_address_is_named_without_its_login(host: Host, url: str) -> None:
    with pytest.raises(InputError, match=r"the Python index .*/simple is no address") as caught:
        host.discover(UV_DEFAULT_INDEX=url)
    assert "pw" not in str(caught.value)


def test_credentials_come_from_netrc(host: Host) -> None:
    host.write(".netrc", "machine index.corp login me password p@ss\n", host.home)
    network = host.discover(UV_DEFAULT_INDEX="https://index.corp/simple")
    assert network.index == "https://me:p%40ss@index.corp/simple"
    assert "ss@" not in f"{network!r} {network}" and "//index.corp/simple" in repr(network)
    written = host.discover(UV_DEFAULT_INDEX="https://you:own@index.corp/simple")
    assert written.index == "https://you:own@index.corp/simple"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".netrc", "machine index.corp login me password hid den\n"),
        (".config/pip/pip.conf", "[global]\nindex-url = x\nhidden\n"),
        (".config/pip/pip.conf", "https://me:hidden@index/\n"),
        (".config/uv/uv.toml", 'index-url = https://me:hidden@index/"\n'),
    ],
)
def test_a_file_of_another_form_is_not_quoted(host: Host, name: str, text: str) -> None:
    """Not by the message, and not by a traceback of what lies under it."""
    file = host.write(name, text, host.home)
    with pytest.raises(InputError, match=f"{file} cannot be read: it has another form") as raised:
        host.discover()
    shown = "".join(traceback.format_exception(raised.value))
    assert "hid" not in shown and "den'" not in shown


# --- quoting


@settings(deadline=None, max_examples=30)  # each starts a shell
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_value_survives_the_shell(value: str) -> None:
    assert exported(BuildNetwork(proxies=(("http_proxy", value),)))["HTTP_PROXY"] == value
