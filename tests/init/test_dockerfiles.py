"""Dockerfiles: stages, variables, documents, and from where a command installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.init import dockerfiles, proposal, shell


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
    assert list(shell.commands(script, 10)) == [
        (10, ("set", "-e")),
        (11, ("if", "true")),
        (11, ("then", "pip", "install", "a>=1; x", 'b"c', "$(echo d; e)", "`f g`")),
        (12, ("fi",)),
        (13, ("cd", "x")),
        (13, ("make",)),
        (13, ("tee", "log")),
        (14, ("echo", "a#b", "two\nlines")),
        (16, ("pip", "install", "h>=2")),
    ]
    for broken in ("'", '"', "`", "$(", "\\", "# x", "a 'b", "$((", ""):
        list(shell.commands(broken, 1))  # no text is too broken to read


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
        ('[ "$FLASH" = true ] || true', "then else"),
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


def test_of_several_branches_the_first_that_holds_counts() -> None:
    text = """FROM debian
ARG CUDA=12
RUN if [ "$CUDA" = 11 ]; then pip install a; elif [ "$CUDA" = 12 ]; then pip install b; \\
    elif [ "$X" = 1 ]; then pip install c; else pip install d; fi
"""
    said = [each for each in dockerfiles.read(text, "Dockerfile") if each.kind == "requirement"]
    assert [each.text for each in said if not each.why] == ["b"]
