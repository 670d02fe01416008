import pytest

from builder.core.errors import fix_of

UV = """error: Failed to write to the client cache
  cause: failed to write to file `/c/simple-v28/pypi/.tmp`: No space left on device (os error 28)"""
APT = "E: Write error - write (28: No space left on device)"


@pytest.mark.parametrize("printed", [UV, APT, "OSError: [Errno 122] Disk quota exceeded: '/home'"])
def test_a_full_disk_that_another_program_met_is_no_fault_of_the_network(printed: str) -> None:
    assert fix_of(printed, "check the network").startswith("free space there; ")


def test_other_words_of_a_program_keep_their_own_fix() -> None:
    assert fix_of("E: Unable to connect to deb:80", "check the network") == "check the network"
