"""What a `$` in a cloudbuild.yaml becomes."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cloudbuild_local.errors import InputError
from cloudbuild_local.reader.expansion import ExpansionError, expand, references
from cloudbuild_local.reader.substitutions import assignments, resolve

VALUES = {"_NAME": "Hello-World", "_EMPTY": "", "BRANCH_NAME": "feature/Some-Thing", "_N": "3"}


def plain(text: str) -> str:
    return expand(text, VALUES.get, dynamic=False)


def dynamic(text: str) -> str:
    return expand(text, VALUES.get, dynamic=True)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("$_NAME", "Hello-World"),
        ("${_NAME}s", "Hello-Worlds"),
        ("$$_NAME", "$_NAME"),
        ("$$$_NAME", "$Hello-World"),
        ("$$$$", "$$"),
        ("$(date) $1 $? $lower ${lower} $", "$(date) $1 $? $lower ${lower} $"),
        ("$TAG_NAME", ""),  # built in, without a value
        ("${_NAME:0:4}", "${_NAME:0:4}"),  # bash's expansions are off
        ("${TF_VAR_x}", "${TF_VAR_x}"),  # the shell's: names of substitutions are upper case
    ],
)
def test_without_expansions(text: str, becomes: str) -> None:
    assert plain(text) == becomes


def test_a_missing_name_is_an_error_unless_loose() -> None:
    with pytest.raises(ExpansionError, match="no value for the substitution \\$_GONE"):
        plain("x $_GONE")
    assert expand("x $_GONE", VALUES.get, dynamic=False, strict=False) == "x "


def test_a_name_that_is_not_built_in_is_an_error_even_when_loose() -> None:
    with pytest.raises(ExpansionError, match="\\$HOME is not a built-in") as error:
        expand("$HOME", VALUES.get, dynamic=False, strict=False)
    assert "$$HOME" in error.value.fix


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("${BRANCH_NAME//\\//-}", "feature-Some-Thing"),
        ("${#_NAME}", "11"),
        ("${_GONE:-none}", "none"),
        ("${_GONE:-${_NAME,,}}", "hello-world"),
        ("${_NAME:0:$_N}", "Hel"),
        ("${_NAME//[lo]/_}", "He___-W_r_d"),
        ("${TF_VAR_x:?}", "${TF_VAR_x:?}"),  # the shell's
        ("${#_Name} ${_NAMEs-x}", "${#_Name} ${_NAMEs-x}"),
    ],
)
def test_expansions(text: str, becomes: str) -> None:  # bash is asked below
    assert dynamic(text) == becomes


@pytest.mark.parametrize("text", ["${_NAME@Q}", "${_NAME:a}", "${_NAME!}", "${_GONE:?say it}"])
def test_what_is_no_expansion_says_so(text: str) -> None:
    with pytest.raises(ExpansionError):
        dynamic(text)


_VALUE = st.text("abAB/-.", max_size=8)
_PIECES = st.sampled_from(["a", "b", "A", "-", ".", "?", "*", "[ab]", "[!a]", "\\/", "\\*"])
_PATTERN = st.lists(_PIECES, max_size=4).map("".join)
_SOMETHING = st.lists(_PIECES, min_size=1, max_size=4).map("".join)
_OPERATION = st.one_of(
    st.tuples(st.sampled_from(["#", "##", "%", "%%", "^", "^^", ",", ",,"]), _PATTERN).map("".join),
    st.tuples(st.sampled_from(["/", "//", "/#", "/%"]), _SOMETHING, st.text("xy-", max_size=2)).map(
        lambda parts: f"{parts[0]}{parts[1]}/{parts[2]}"
    ),
    st.tuples(st.integers(-9, 9), st.integers(-3, 9)).map(lambda two: f": {two[0]}:{two[1]}"),
    st.tuples(st.sampled_from([":-", "-", ":+", "+", ":=", "="]), st.text("xy-", max_size=3)).map(
        "".join
    ),
)


_LOOP = """
shopt -u patsub_replacement 2>/dev/null
while IFS= read -r -d '' _V && IFS= read -r -d '' operation; do
  (eval "printf %s \\"\\${_V$operation}\\"") 2>/dev/null
  printf '\\0%s\\0' $?
done
"""


@pytest.fixture(scope="module")
def bash() -> Iterator[Callable[[str, str], str | None]]:
    """What bash makes of a value and an operation; None for an error. One bash for all."""
    with subprocess.Popen(
        ["bash", "-c", _LOOP],
        env={"LC_ALL": "C.UTF-8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdin
        assert shell.stdout
        answers = shell.stdout

        def text() -> str:
            return b"".join(iter(lambda: answers.read(1), b"\0")).decode()

        def answer(value: str, operation: str) -> str | None:
            assert shell.stdin
            shell.stdin.write(f"{value}\0{operation}\0".encode())
            shell.stdin.flush()
            result, code = text(), text()
            return result if code == "0" else None

        yield answer
        shell.stdin.close()


@settings(max_examples=150, deadline=None)
@given(_VALUE, _OPERATION)
@example("a/b/c", "//\\//-")
@example("", "/#/x")
@example("ab", "/%/x")
def test_expansions_are_those_of_bash(
    bash: Callable[[str, str], str | None], value: str, operation: str
) -> None:
    expected = bash(value, operation)
    try:
        ours: str | None = expand(f"${{_V{operation}}}", {"_V": value}.get, dynamic=True)
    except ExpansionError:
        ours = None
    assume(expected is not None or ours is not None)
    assert ours == expected


def test_values_name_each_other() -> None:
    values = {"_A": "${_B}-${BRANCH_NAME//\\//-}", "_B": "b", "BRANCH_NAME": "x/y"}
    assert resolve(values, dynamic=True, strict=True).known["_A"] == "b-x-y"
    assert resolve(values, dynamic=False, strict=True).known["_A"] == values["_A"]


def test_values_in_a_circle() -> None:
    with pytest.raises(ExpansionError, match="_A -> _B -> _A"):
        resolve({"_A": "$_B", "_B": "$_A"}, dynamic=True, strict=True)


def test_names_that_a_text_uses() -> None:
    assert references("${_A:-$_B} $_C $$_D ${PROJECT_ID}", dynamic=True) == (
        "_A",
        "_B",
        "_C",
        "PROJECT_ID",
    )
    assert references("${_A:-x}", dynamic=False) == ()


def test_assignments_as_gcloud_reads_them() -> None:
    assert assignments(("_A=1,_B=x=y", "_C=")) == {"_A": "1", "_B": "x=y", "_C": ""}
    assert assignments(("^;^_A=1,2;_B=3",)) == {"_A": "1,2", "_B": "3"}


@pytest.mark.parametrize("text", ["_a=1", "HOME=1", "PROJECT_ID=x", "_A"])
def test_bad_assignments(text: str) -> None:
    with pytest.raises(InputError, match="--substitutions"):
        assignments((text,))
