"""What an audit says to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.audit import report
from builder.audit.audited import Audited, Gpu, require
from builder.core.errors import CheckFailed
from builder.devicecode.pruning.rule import ComputeCapability
from builder.devicecode.verdict import Audit
from tests.devicecode.writer import container, library, sass
from tests.prove.installed import site

VOLTA = library(container(sass(70)))


def test_several_targets_are_one_table(tmp_path: Path) -> None:
    """What --all prints: a column a target, each judged for its own GPU."""
    fine = site(tmp_path / "lib/python3.11/site-packages")
    lacks = site(tmp_path / "lib/python3.10/site-packages", cudnn=VOLTA)
    sources = [
        Audited("v100", fine, (Gpu("V100", ComputeCapability(7, 0)),), required=True),
        Audited("h100", lacks, (Gpu("H100", ComputeCapability(9, 0)),), required=True),
        Audited("t4", Audit(()), (), note="not read (run builder build t4)"),
    ]
    lines = report.table(sources)
    assert lines[0].split() == ["v100", "h100"]
    assert lines[1].split() == ["libcudnn_ops.so.9", "native", "missing"]
    assert lines[2].split() == ["libtensorflow_cc.so.2", "native", "native"]
    assert lines[3].startswith("v100: V100 7.0: native")
    assert lines[4].startswith("h100: H100 9.0: missing, because of libcudnn_ops.so.9")
    assert lines[-1] == "t4: not read (run builder build t4)"
    with pytest.raises(CheckFailed, match=r"h100: H100 9\.0: missing"):
        require(sources)
