"""The table of GPUDirect: each row is of machines that there are, with a source that was read."""

from __future__ import annotations

from builder.facts import gpudirect, sources_of
from builder.jobs import machines


def test_every_row_is_of_machines_with_eight_gpus_and_names_a_source() -> None:
    known = {each.machine: each.count for each in machines.combinations() if each.device}
    sources = sources_of(gpudirect._table())
    for kind in gpudirect.kinds():
        assert [known[machine] for machine in kind.machines] == [8] * len(kind.machines), kind
        assert sources[kind.source].verified, kind
        assert bool(kind.profile) != ("NCCL_PROTO" in kind.environment), kind
        assert len(kind.networks) in (4, 8), kind


def test_a_machine_has_one_kind_or_none() -> None:
    found = gpudirect.on("a3-megagpu-8g")
    assert found is not None and found.name == "TCPXO"
    assert gpudirect.on("a2-highgpu-1g") is None
