"""Command lines of pip and uv: no value of an option is taken for a package."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from pip._internal.commands import create_command

from builder.config import uv
from builder.init import installers
from builder.init.manifests import PYPI_URL


def options_of(tool: str) -> Iterator[tuple[str, bool]]:
    """Yield each option that the installed tool itself lists, and whether it takes a value."""
    if tool == "pip install":
        parser = create_command("install").parser
        for group in [parser, *parser.option_groups]:
            for option in group.option_list:
                for name in option._short_opts + option._long_opts:
                    yield name, option.takes_value()
        return
    command = [uv.uv_program(), *tool.split()[1:], "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for short, long, value in re.findall(r"^ +(?:(-\w), )?(--[\w-]+)( <)?", text, re.MULTILINE):
        yield from ((name, bool(value)) for name in (short, long) if name)


@pytest.mark.parametrize("tool", ["pip install", "uv pip install", "uv pip sync", "uv add"])
def test_every_option_of_the_installed_tools_is_known(tool: str) -> None:
    options = dict(options_of(tool))
    assert len(options) > 60
    for name, takes in options.items():
        for form in ([name, "off"], [f"{name}=off"] if name.startswith("--") else [f"{name}off"]):
            words = [*tool.split(), *(form if takes else [name]), "pandas"]
            install = installers.parse(words)
            assert install is not None and not install.unknown, words
            if tool == "uv pip sync":  # it takes files
                assert install.options[-1] == installers.Option("-r", "pandas")
                continue
            assert install.packages == ("pandas",), words
            said = list(installers.statements(install, "Dockerfile:1"))
            packages = [each.text for each in said if each.kind == "requirement"]
            assert packages == ["pandas"], words
            assert not takes or any("off" in each.text for each in said), words


@pytest.mark.parametrize(
    ("command", "packages", "options"),
    [
        ("pip3.11 install --progress-bar off -c c.txt pandas", ["pandas"], 2),
        ("sudo -H pip install a", ["a"], 0),
        ("conda run -n x --no-capture-output pip install a", ["a"], 0),
        ("poetry add -G train einops@^0.8 b@latest", ["einops>=0.8,==0.8.*", "b"], 1),
        ("pdm add -dG x --no-sync a[b]>=1", ["a[b]>=1"], 3),
        ("pdm sync --prod", None, 0),
        ("pipenv install --system --python 3.11 a", ["a"], 2),
        ("pipenv install -e .", [], 1),
        ("pipenv install --system --deploy", None, 0),
        ("python3 -mpip install a", ["a"], 0),
        ("pipx install a", None, 0),
        ("uv tool install a", None, 0),
        ("/opt/venv/bin/python -m pip --timeout 9 install -qU a b", ["a", "b"], 3),
        ("python3 -u -m uv pip install --torch-backend cu128 a", ["a"], 1),
        ("uv --offline pip install -p3.11 a", ["a"], 2),
        ("uv add --group gpu a", ["a"], 1),
        ("PIP_NO_INDEX=1 pip install -r=more.txt a", ["a"], 1),
        ("pip install --find-link /wheels a", ["a"], 1),
        ("pip install -- a", ["a"], 0),
        ("pip download a", None, 0),
        ("pip uninstall -y install", ["install"], 1),
        ("uv pip list install", None, 0),
        ("python train.py -m pip install a", None, 0),
        ("uv", None, 0),
        ("", None, 0),
    ],
)
def test_what_a_command_installs(command: str, packages: list[str] | None, options: int) -> None:
    install = installers.parse(installers.unwrapped(tuple(command.split())))
    assert (install and list(install.packages)) == packages
    assert install is None or len(install.options) == options


@pytest.mark.parametrize(
    ("command", "taken"),
    [
        ("pip install", True),
        (f"pip install --index-url {PYPI_URL}", True),
        ("pip install --extra-index-url https://download.pytorch.org/whl/cu126", True),
        ("pip install -f https://download.pytorch.org/whl/torch_stable.html", True),
        ("uv add --index pytorch=https://download.pytorch.org/whl/cu126", True),
        ("pip install --no-index --find-links /wheels", False),
        ("uv pip install --no-index", False),
        ("pip install -f wheels", False),
        ("pip install --find-links=https://data.example.org/wheels.html", False),
        ("pip install -i https://mirror.example.org/simple", False),
        ("pip install --index-url https://download.pytorch.org/whl/cu126", False),
        (
            f"uv pip install --default-index {PYPI_URL.replace('/simple', '.example.org/simple')}",
            False,
        ),
        ("pip install --extra-index-url https://packages.example.org/simple", False),
        ("pip install --extra-index-url https://download.pytorch.org.example.org/whl", False),
        ("uv add --index private=https://packages.example.org/simple", False),
        ("pip install --an-option-of-2031 value", False),
        ("poetry add --source own", False),
        ("poetry add --platform win32", False),
    ],
)
def test_what_comes_from_elsewhere_is_named_and_not_taken(command: str, taken: bool) -> None:
    install = installers.parse([*command.split(), "ours"])
    assert install is not None
    said = {each.text: each for each in installers.statements(install, "Dockerfile:1")}
    assert said["ours"].foreign is not taken
    assert bool(said["ours"].why) is not taken


@pytest.mark.parametrize(
    ("variables", "elsewhere"),
    [
        ({"PIP_NO_INDEX": "1"}, True),
        ({"PIP_NO_INDEX": "false"}, False),
        ({"PIP_FIND_LINKS": "/wheels"}, True),
        ({"UV_INDEX": "https://download.pytorch.org/whl/cu134"}, False),
        ({"UV_INDEX": "https://download.pytorch.org/whl/cu134 https://ours.example.org"}, True),
        ({"UV_DEFAULT_INDEX": "https://ours.example.org/simple"}, True),
        ({"PIP_CONFIG_FILE": "/etc/ours.conf"}, True),
        ({"PIP_NO_CACHE_DIR": "1", "UV_LINK_MODE": "copy", "INDEX_URL": "https://x.org"}, False),
    ],
)
def test_a_variable_counts_as_its_option(variables: dict[str, str], elsewhere: bool) -> None:
    options = installers.of_environment(variables)
    assert any(map(installers.foreign, options)) is elsewhere


@pytest.mark.parametrize(
    ("argument", "requirement"),
    [
        ("a", True),
        ("a[b,c]>=1,<2", True),
        ("a>=1; sys_platform == 'linux' and extra == ':'", True),
        ("a @ https://example.org/a-1-py3-none-any.whl", True),
        ("a@git+https://example.org/a", True),
        (".", False),
        (".[train]", False),
        ("./a", False),
        ("requirements.txt", False),
        ("requirements.in", False),
        ("~/a", False),
        ("a/b", False),
        ("$WHEEL", False),
        ("a-1-py3-none-any.whl", False),
        ("https://example.org/a-1.tar.gz", False),
        ("git+ssh://git@example.org/a.git", False),
        ("C:\\a", False),
    ],
)
def test_what_is_a_requirement(argument: str, requirement: bool) -> None:
    assert (installers.argument(argument, "f:1").kind == "requirement") is requirement
