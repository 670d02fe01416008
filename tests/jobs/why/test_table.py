"""The table of endings: complete rows, no row that can never win, words found as they are meant."""

from __future__ import annotations

from builder import contract
from builder.jobs.why import table

TABLE = table.load()


def test_every_row_tells_what_happened_what_to_do_and_where_that_was_read() -> None:
    for ending in TABLE.endings:
        assert ending.happened.endswith(".") and ending.do.endswith("."), ending.name
        assert ending.source.startswith(("https://", "docs/")), ending.name
        assert ending.level in ("cause", "general", "consequence"), ending.name
        assert ending.again in ("yes", "later", "no"), ending.name
        assert ending.says or ending.exit_codes or ending.trainer_codes, ending.name
        assert all(len(part) >= 3 for needle in ending.says for part in needle[:1]), ending.name


def test_names_are_unique_and_over_names_others() -> None:
    names = [ending.name for ending in TABLE.endings]
    assert len(set(names)) == len(names)
    for ending in TABLE.endings:
        assert set(ending.over) < set(names) - {ending.name}, ending.name
        for other in ending.over:
            assert ending.name not in TABLE.named(other).over, (ending.name, other)


def test_no_exit_code_has_two_endings() -> None:
    codes = [code for ending in TABLE.endings for code in ending.exit_codes]
    assert len(set(codes)) == len(codes)


def test_every_exit_code_of_our_trainer_that_is_no_fault_has_an_ending() -> None:
    for code in (contract.USAGE, contract.OUTSIDE, contract.NOT_FINITE, contract.RESTART):
        assert TABLE.of_code(code, ours=True) is not None
    assert TABLE.of_code(contract.FAULT, ours=True) is None
    assert TABLE.of_code(contract.USAGE, ours=False) is None


def endings(*lines: str) -> list[tuple[str, int]]:
    return [(each.ending.name, each.index) for each in TABLE.find(lines)]


def test_words_are_found_in_any_case_and_with_a_gap_in_one_line() -> None:
    assert endings("NO SPACE LEFT on device") == [("disk-full", 0)]
    assert ("image-pull", 1) in endings("", "manifest for a/b:1 not found")
    assert endings("manifest for a/b:1", "was not found") == []


def test_a_line_with_an_exception_to_the_rule_is_no_evidence() -> None:
    assert endings("ran out of memory trying to allocate. This is not a failure") == []
    assert endings("RuntimeWarning: numpy.dtype size changed") == []


def test_a_later_occurrence_in_the_same_line_counts() -> None:
    assert endings("manifest, then: manifest unknown") == [("image-pull", 0)]


def test_letters_that_change_their_length_in_lower_case_do_not_shift_lines() -> None:
    assert endings("İİİİİİİİİ", "x", "no space left on device") == [("disk-full", 2)]
