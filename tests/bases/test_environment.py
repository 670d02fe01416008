"""The top layer of a base: accounts, folders, the Python environment, the start hook."""

import io
import tarfile

import zstandard

from builder.bases.environment import Environment
from builder.bases.layer import Compression, LayerPlan
from builder.bases.tarball import LayerWriter
from builder.spec.stack import Prune

ROOT = LayerPlan("a" * 64, "Debian bookworm", (), 0, "")
SITE = "opt/venv/lib/python3.11/site-packages"


def entries(one: Environment) -> dict[str, tuple[tarfile.TarInfo, str]]:
    out = io.BytesIO()
    writer = LayerWriter(out, Compression())
    one.write(writer, "root:x:0:0:root:/root:/bin/bash\n", "root:x:0:\n")
    writer.close("k")
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(out.getvalue())
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {
            info.name: (info, file.read().decode() if (file := tar.extractfile(info)) else "")
            for info in tar
            if not info.issym()
        } | {info.name: (info, info.linkname) for info in tar if info.issym()}


def test_the_user_of_the_program_is_added_to_the_roots_accounts() -> None:
    found = entries(Environment("3.11", 1234, None))
    assert found["etc/passwd"][1].splitlines() == [
        "root:x:0:0:root:/root:/bin/bash",
        "trainer:x:1234:1234::/home/trainer:/usr/sbin/nologin",
    ]
    assert found["etc/group"][1].endswith("trainer:x:1234:\n")
    home, app = found["home/trainer"][0], found["app"][0]
    assert (home.uid, home.gid, home.mode) == (1234, 1234, 0o755)
    assert (app.uid, app.gid) == (0, 0), "a job cannot overwrite its program"


def test_the_environment_leads_to_debians_python() -> None:
    found = entries(Environment("3.11", 1000, None))
    assert found["opt/venv/bin/python"][1] == "python3"
    assert found["opt/venv/bin/python3"][1] == "/usr/bin/python3"
    assert "home = /usr/bin\n" in found["opt/venv/pyvenv.cfg"][1]
    assert found["opt/venv/lib64"][1] == "lib"
    names = list(found)
    assert all(name.rpartition("/")[0] in ("", *names[: names.index(name)]) for name in names
               if not found[name][0].issym())  # fmt: skip


def test_a_pruned_base_says_so_at_its_start_and_another_does_not() -> None:
    hook = f"{SITE}/training_image_gpu"
    pruned = entries(Environment.of("3.11", 1000, Prune("7.0", "tensorflow")))
    assert pruned[f"{hook}.pth"][1].endswith('announce("7.0")\n')
    assert "def announce" in pruned[f"{hook}.py"][1]
    assert f"{hook}.pth" not in entries(Environment("3.11", 1000, None))


def test_the_key_covers_every_value() -> None:
    plans = [
        one.plan(root, compression).key
        for one, root, compression in (
            (Environment("3.11", 1000, None), ROOT, Compression()),
            (Environment("3.13", 1000, None), ROOT, Compression()),
            (Environment("3.11", 1001, None), ROOT, Compression()),
            (Environment("3.11", 1000, "7.0"), ROOT, Compression()),
            (Environment("3.11", 1000, "8.0"), ROOT, Compression()),
            (Environment("3.11", 1000, None), ROOT, Compression("gzip", 6)),
            (
                Environment("3.11", 1000, None),
                LayerPlan("b" * 64, "other", (), 0, ""),
                Compression(),
            ),
        )
    ]
    assert len(set(plans)) == len(plans)
