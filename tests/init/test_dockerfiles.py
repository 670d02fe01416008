"""Dockerfiles: stages, variables, documents, and from where a command installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.init import dockerfiles, proposal, shell
from builder.init.manifests import PYPI_URL
from builder.init.statements import LISTS


def said(text: str) -> dict[str, tuple[str, str, bool]]:
    """What a Dockerfile says: kind, line, and whether it can be taken, by the text."""
    return {
        each.text: (each.kind, each.where.partition(":")[2], not each.why)
        for each in dockerfiles.read(text, "Dockerfile")
    }


def taken(text: str) -> list[str]:
    """What can be taken of a Dockerfile, in order."""
    every = dockerfiles.read(text, "Dockerfile")
    return [each.text for each in every if not each.why and not each.beside]


def test_the_commands_of_a_script_each_with_its_line() -> None:
    script = (
        "set -e # a comment; not a command\n"
        'if true; then pip install \\\n  \'a>=1; x\' "b\\"c" $(echo d; e) `f g`; fi\n'
        "(cd x && make) 2>&1 >/dev/null | tee log &\n"
        "echo a#b 'two\nlines' > out 2> /dev/null\n"
        "pip install h>=2"
    )
    assert [(line, words) for line, words, never in shell.script(script, 10, {})] == [
        (10, ("set", "-e")),
        (11, ("true",)),
        (11, ("pip", "install", "a>=1; x", 'b"c', "$(echo d; e)", "`f g`")),
        (13, ("cd", "x")),
        (13, ("make",)),
        (13, ("tee", "log")),
        (14, ("echo", "a#b", "two\nlines")),
        (16, ("pip", "install", "h>=2")),
    ]
    for broken in (
        "'",
        '"',
        "`",
        "$(",
        "\\",
        "# x",
        "a 'b",
        "$((",
        "",
        "if",
        "fi",
        "for",
        "case x in",
    ):
        list(shell.script(broken, 1, {}))  # no text is too broken to read
    loops = "for a in b c d e; do " * 40 + "x; " + "done; " * 40
    for deep in ("(" * 9_999, "if " * 9_999, '"$(' * 9_999, loops):
        assert len(list(shell.script(deep, 1, {}))) < 500


def test_only_the_last_stage_and_what_it_builds_on_count() -> None:
    text = """\
ARG BASE=python:3.11
FROM --platform=linux/amd64 ${BASE} AS common
RUN pip install shared
FROM common AS tests
RUN pip install pytest
FROM node:22 AS web
ENV A=1
RUN apt-get install -y nodejs
FROM Common
RUN pip install own
"""
    assert taken(text) == ["shared", "own"]
    named = said(text)
    assert named["FROM --platform=linux/amd64 ${BASE} AS common"][0] == "image"
    assert named["FROM Common"][0] == "note"
    for each in ("pytest", "A=1", "apt nodejs"):
        assert not named[each][2]
    bases = [each.words for each in dockerfiles.read(text, "f") if each.kind == "image"]
    assert bases == [("python:3.11",), ("node:22",)]


def test_variables_documents_and_the_lines_of_a_long_command() -> None:
    text = """\
# syntax=docker/dockerfile:1
ARG SHARED=1.4
FROM debian
ARG SHARED
ARG V=2.1
ENV W=3 X="$V.0"
RUN pip install a==${V} b==$SHARED c==${UNKNOWN:-5} d==${UNKNOWN} \\
    # a comment between
    e==$X \\

    f
RUN <<EOF
set -e
pip install g \\
  h
EOF
RUN <<A bash && pip install i
pip install j
A
RUN python <<EOF
import torch
EOF
COPY <<EOF /etc/x
text
EOF
RUN ["pip", "install", "k"]
RUN bash -lc "pip install 'l>=1' && true"
RUN --mount=type=cache,target=/var/cache/pip conda run -n x pip install m
"""
    named = said(text)
    lines = {
        "a==2.1": "7", "b==1.4": "7", "c==5": "7", "e==2.1.0": "9", "f": "11", "g": "14",
        "h": "15", "i": "17", "k": "26", "l>=1": "27", "m": "28", "d==${UNKNOWN}": "7",
    }  # fmt: skip
    for each, line in lines.items():
        assert named[each] == ("requirement", line, True), each
    assert named["import torch"][:2] == ("note", "21")
    assert named["text"][:2] == ("note", "24")
    assert "j" not in taken(text)
    assert named["pip install j"][:2] == ("note", "18")


@pytest.mark.parametrize(
    "line",
    [
        "ENV PIP_INDEX_URL=https://ours.example.org/simple",
        "ENV PIP_NO_INDEX 1",
        "ARG PIP_FIND_LINKS=/wheels",
        "RUN export UV_DEFAULT_INDEX=https://ours.example.org/simple",
        "RUN pip config set global.index-url https://ours.example.org/simple",
        "RUN printf '[global]\\nno-index = true\\n' > /etc/pip.conf",
        "COPY deploy/pip.conf /etc/pip.conf",
        "ADD uv.toml .",
    ],
)
def test_an_index_that_a_line_before_names_counts(line: str) -> None:
    text = f"FROM a AS b\n{line}\nFROM b\nRUN pip install ours\n"
    assert "ours" not in taken(text)
    assert "ours" in taken(text.replace(line, "RUN true"))


@pytest.mark.parametrize(
    "line",
    [
        f"RUN python -m pip config set global.index-url {PYPI_URL}",
        "RUN pip config --user set global.break-system-packages true",
        "RUN poetry config virtualenvs.create false",
        "ENV PIP_NO_CACHE_DIR=1",
    ],
)
def test_a_setting_that_names_no_other_index_changes_nothing(line: str) -> None:
    assert taken(f"FROM a\n{line}\nRUN pip install rich\n")[-1] == "rich"


def test_a_file_that_doubles_or_builds_on_itself_is_read_in_no_time() -> None:
    doubles = "ENV A0=xxxxxxxxxx\n" + "".join(f"ENV A{n + 1}=$A{n}$A{n}\n" for n in range(60))
    assert len(list(dockerfiles.read(f"FROM a\n{doubles}RUN pip install $A60\n", "f"))) == 63
    stages = "".join(f"FROM s{n} AS s{n + 1}\nRUN pip install a{n}\n" for n in range(1_500))
    assert len(taken(f"FROM a AS s0\n{stages}")) == 1_500


def test_a_secret_of_the_build_may_name_an_index() -> None:
    text = "FROM a\nRUN --mount=type=secret,id=pip,target=/etc/pip.conf pip install ours\n"
    assert "ours" not in taken(text)


def test_where_a_file_of_requirements_may_lie() -> None:
    text = """\
FROM a
COPY --chown=1 docker/reqs.txt /tmp/requirements.txt
COPY deploy /deploy
RUN pip install -r /tmp/requirements.txt -c /deploy/bounds.txt
RUN --mount=type=bind,source=deps/all.txt,target=/tmp/r.txt pip install -r /tmp/r.txt
"""
    files = {each.text: each.words for each in dockerfiles.read(text, "f") if each.words}
    assert files["-r /tmp/requirements.txt"][:2] == ("docker/reqs.txt", "requirements.txt")
    assert files["-r /tmp/r.txt"][0] == "deps/all.txt"
    assert "deploy/bounds.txt" in files["-c /deploy/bounds.txt"]


@pytest.mark.parametrize(
    ("lines", "file"),
    [
        ("COPY ../list.txt /\nRUN pip install -r list.txt", "list.txt"),
        ("COPY . /app\nWORKDIR /app/docker\nRUN pip install -r list.txt", "docker/list.txt"),
        ("COPY . /app\nRUN cd /app/docker && pip install -r list.txt", "docker/list.txt"),
        ("COPY docker/*.txt /tmp/\nRUN pip install -r /tmp/list.txt", "docker/list.txt"),
        ("COPY docker /x/\nRUN pip install --requirement=/x/list.txt", "docker/list.txt"),
        ("WORKDIR /a\nCOPY docker/list.txt b.txt\nRUN pip install -r b.txt", "docker/list.txt"),
        ("COPY env/gpu.yml /e.yml\nRUN mamba env create -n x -f /e.yml", "env/gpu.yml"),
    ],
)
def test_a_file_is_the_one_that_was_copied(lines: str, file: str) -> None:
    said = dockerfiles.read(f"FROM a\n{lines}\n", "f")
    assert [each.words[0] for each in said if each.kind in LISTS] == [file]


@pytest.mark.parametrize(
    ("made", "copied"),
    [
        ("RUN python -m venv /opt/venv && /opt/venv/bin/pip install a", "/opt/venv /opt/venv"),
        ("RUN pip install --prefix=/install a", "/install /usr/local"),
        ("RUN pip install --user a", "/me/.local /me/.local"),
        ("RUN conda run -n x pip install a", "/opt/conda /opt/conda"),
        ("WORKDIR /app\nRUN uv venv && uv pip install a", "/app /app"),
    ],
)
def test_packages_that_a_stage_copies_are_the_image_s(made: str, copied: str) -> None:
    text = f"FROM debian AS made\nRUN apt-get install -y gcc\n{made}\nFROM debian\nCOPY --from="
    for name in ("made", "0"):
        assert taken(f"{text}{name} {copied}\n") == ["a"]
    assert taken(f"{text}made /app/weights /weights\n") == []


@pytest.mark.parametrize(
    "command",
    [
        '["/bin/sh", "-c", "cd /app && exec python -u src/train.py --lr 1"]',
        "torchrun --standalone --nproc_per_node 2 src/train.py --lr 1",
        "accelerate launch --multi_gpu --num_processes=2 src/train.py",
        "deepspeed --num_gpus 2 src/train.py --deepspeed ds.json",
        '["uv", "run", "python", "src/train.py"]',
    ],
)
def test_the_program_stands_behind_shells_and_launchers(command: str, tmp_path: Path) -> None:
    for name in ("train", "main"):  # several: nothing is guessed
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / f"{name}.py").write_text("import torch\n")
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / f"{name}.py").write_text("")
    (tmp_path / "Dockerfile").write_text(f"FROM python:3.11\nCMD {command}\n")
    assert proposal.propose(tmp_path, "t4").values["program"] == "src:train"


def test_a_word_that_a_program_has_is_no_value_of_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\nCMD python a.py --config b.py\n")
    assert proposal.propose(tmp_path, "t4").values["program"] == ".:a"


@pytest.mark.parametrize(
    ("condition", "branches"),
    [
        ('[ "${FLASH}" == "true" ]', "else"),
        ('[ "$FLASH" = false ]', "then"),
        ('[[ "$FLASH" != "false" ]]', "else"),
        ('! [ -z "$NONE" ]', "else"),
        ('[ -n "$FLASH" ]', "then"),
        ('[[ $(uname -m) =~ "aarch64" ]]', "else"),
        ('[ "$TARGETARCH" = "amd64" ]', "then"),
        ('[ "$(dpkg --print-architecture)" = "arm64" ]', "else"),
        ('[ "$GIVEN" = 1 ]', "then else"),
        ("[ -f setup.py ]", "then else"),
        ('[ "$FLASH" = true ] || true', "then"),
        ('[ "$FLASH" = true ] && [ -f setup.py ]', "else"),
    ],
)
def test_a_branch_that_is_never_taken_installs_nothing(condition: str, branches: str) -> None:
    text = (
        'FROM debian\nARG FLASH=false\nARG NONE=""\n'
        f"RUN if {condition}; then pip install then; else pip install else; fi; pip install more\n"
    )
    said = [each for each in dockerfiles.read(text, "Dockerfile") if each.kind == "requirement"]
    assert [each.text for each in said if not each.why] == [*branches.split(), "more"]
    assert all(each.why.startswith("is run only if ") for each in said if each.why)


@pytest.mark.parametrize(
    ("script", "installs"),
    [
        ('[ "$GPU" = 0 ] && pip install a; pip install b', "a b"),
        ('[ "$GPU" = 1 ] && pip install a || pip install b', "b"),
        ("[ -f x ] && pip install a || pip install b", "a b"),
        ("pip install a || pip install b", "a"),
        ('python -c "import a" || pip install a', "a"),
        ('[ "$GPU" = 1 ] && { pip install a; pip install b; } || pip install c', "c"),
        ('[ "$GPU" = 1 ] && (cd x && pip install a)\npip install b', "b"),
        ('! [ "$GPU" = 1 ] &&\n pip install a', "a"),
        ('[ "$GPU" = 1 ] && pip install a | tee log\npip install b', "b"),
        ('[ "$GPU" = 1 ] && echo y | pip install a\npip install b', "b"),
        ("for p in a b; do pip install $p ${p}c; done", "a ac b bc"),
        ("for p in $(cat list); do pip install $p; done; pip install b", "b"),
        ("while read p; do pip install $p; done < list; pip install b", "b"),
        ('case "$GPU" in 1|2) pip install a;; [0-9]) pip install b;; *) pip install c; esac', "b"),
        ("case $OTHER in 1) pip install a;; *) pip install b;; esac", "a b"),
        ("pip install $SEVERAL $NONE", "a b"),
        ('export MORE="$(echo "x; pip install a" | tr a b)" && pip install b', "b"),
    ],
)
def test_what_a_script_runs_is_installed(script: str, installs: str) -> None:
    begins = 'FROM debian\nARG GPU=0\nARG SEVERAL="a b"\nARG NONE=""\nRUN <<EOF\n'
    said = list(dockerfiles.read(f"{begins}{script}\nEOF\n", "Dockerfile"))
    taken = [each.text for each in said if each.kind == "requirement" and not each.why]
    assert taken == installs.split()
    assert all(each.why for each in said if each.text not in taken and "pip" in each.text)


def test_of_several_branches_the_first_that_holds_counts() -> None:
    text = """FROM debian
ARG CUDA=12
RUN if [ "$CUDA" = 11 ]; then pip install a; elif [ "$CUDA" = 12 ]; then pip install b; \\
    elif [ "$X" = 1 ]; then pip install c; else pip install d; fi
"""
    said = [each for each in dockerfiles.read(text, "Dockerfile") if each.kind == "requirement"]
    assert [each.text for each in said if not each.why] == ["b"]


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        ("COPY . /a", {"there"}),
        ("COPY list.txt /a/", {"there"}),
        ("COPY other /a", {"not"}),
        ("", {"there", "not"}),
        ("COPY --from=b /a /a\nCOPY other /a", {"there", "not"}),
        ("COPY other /a\nRUN make list.txt", {"there", "not"}),
        ("COPY other /a\nRUN git clone https://a.example/b .", {"there", "not"}),
        ("COPY . /a\nCOPY .dockerignore /a/", {"there"}),
    ],
)
@pytest.mark.parametrize("ignored", ["", "*.md\n", "*.txt\n"])
def test_a_file_that_is_asked_for_is_looked_up_where_it_was_copied_from(
    lines: str, taken: set[str], ignored: str
) -> None:
    files = {"list.txt": "", "other/x": "", ".dockerignore": ignored}
    text = f"FROM a\nWORKDIR /a\n{lines}\n"
    text += "RUN if [ -f list.txt ]; then pip install there; else pip install not; fi\n"
    said = dockerfiles.read(text, "f", files.get)
    packages = {each.text for each in said if each.kind == "requirement" and not each.beside}
    assert packages == (taken if ignored != "*.txt\n" or "not" in taken else {"there", "not"})


def test_scripts_that_run_each_other_are_read_once() -> None:
    files = {
        f"s/{n}.sh": f"for i in $(seq 9); do ./{n}.sh; done\n./{n + 1}.sh\n" * 50 for n in range(50)
    }
    said = list(dockerfiles.read("FROM a\nCOPY s /\nRUN /0.sh\n", "f", files.get))
    read = {each.where.partition(":")[0] for each in said}
    assert {"s/0.sh", "s/9.sh"} <= read and "s/40.sh" not in read
