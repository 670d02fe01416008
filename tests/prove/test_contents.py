"""The check `contents`: secrets, and what the locks of an image of ours do not account for."""

from __future__ import annotations

import json

import pytest

from builder.prove.checks import contents
from builder.prove.image import Image
from tests.prove.reading import SITE, Files, layer, plain, read

KEY = "-----BEGIN " + "PRIVATE KEY-----"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" * 2
MIXED = "a1B2c3D4e"


def messages(image: Image) -> list[str]:
    defects, seen = contents.run(image)
    assert all(defect.fix for defect in defects)
    json.dumps(seen)
    return [defect.message for defect in defects]


def text(path: str, content: str) -> Files:
    return {path: (content.encode(), 0o644, 0)}


def wheel(name: str, version: str, *files: str) -> Files:
    """A package with its RECORD."""
    record = "".join(f"{file},sha256=x,1\n" for file in files)
    info = f"{SITE}/{name}-{version}.dist-info"
    return {**plain(*(f"{SITE}/{file}" for file in files)), **text(f"{info}/RECORD", record)}


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        ("/root/.netrc", "machine a login b password c", "a netrc with logins"),
        ("/home/trainer/.ssh/id_ed25519", "x", "an SSH key"),
        ("/app/key.pem", f"{KEY}\n{BODY}\n", "a private key"),
        ("/app/sa.json", f'{{"private_key": "{KEY}\\n{BODY}"}}', "a private key"),
        ("/app/adc.json", '{"refresh_' + 'token": "1//0abcdefghijkl"}', "Google Cloud credentials"),
        ("/etc/pip.conf", "index-url = https://me:s3cret@index.example/", "an address with a pass"),
        ("/root/.docker/config.json", '{"auths":{"a":{"auth":"bWU6czNjcmV0"}}}', "a login for a"),
        ("/app/task.py", "TOKEN = 'ghp_" + MIXED * 4 + "'", "a token (github-pat)"),
        ("/app/hf.py", "login('hf_" + "aBcDeFgHiJkLmNoPq" * 2 + "')", "a Hugging Face token"),
        ("/app/notes.txt", "sk-" + "proj-" + MIXED * 4 + "T3Blb" + "kFJ" + MIXED * 3, "an OpenAI"),
        ("/app/ci.yml", "token: glpat-" + MIXED * 2 + "Zz", "a token (gitlab-pat)"),
        ("/app/run.sh", "export AWS_ACCESS_KEY_ID=AKIA" + "Q3EGRT5TW7Z2XK4M", "an AWS access key"),
        ("/app/w.sh", "export WANDB_API_KEY=" + "0a1b2c3d4e" * 4, "a W&B key"),
        ("/root/.kaggle/kaggle.json", "{}", "a Kaggle login"),
        ("/app/.env", "DB_PASSWORD=" + MIXED * 2, "a login in a variable"),
    ],
)
def test_a_secret_is_found_and_named(path: str, content: str, kind: str) -> None:
    (message,) = messages(read(layer(text(path, content))))
    assert f"holds {kind}" in message and message.endswith(path)


def test_a_secret_that_a_later_layer_hides_is_named_and_a_repository_with_its_history() -> None:
    below = layer({**text("/app/.netrc", "x"), **plain("/app/.git/HEAD", "/app/sub/.git")})
    hidden, repository = messages(read(below, layer(plain("/app/.wh..netrc"))))
    assert hidden.endswith("a netrc with logins: /app/.netrc; a later layer hides it")
    assert repository == "the image holds a Git repository with its history: /app/.git"
    config = {"Env": ["TOKEN=ghp_" + MIXED * 4], "Labels": {"a": "ghp_" + MIXED * 4}}
    assert messages(read(**config)) == [
        "the image's environment (TOKEN) holds a token (github-pat)",
        "the image's label a holds a token (github-pat)",
    ]


def test_what_only_looks_like_a_secret_is_let_through() -> None:
    innocent = {
        "/usr/lib/pem.py": f'HEADER = "{KEY}"  # what a key begins with',
        "/usr/share/doc/curl.txt": "curl https://user:password@host/",
        "/etc/apt/apt.conf.d/proxy.conf": "Acquire::http::Proxy 'http://proxy:3128';",
        "/app/README.md": "export HF_TOKEN=hf_xxxxxxxx; GH_TOKEN=ghp_" + "x" * 36,
        "/app/.env": "TOKENIZERS_PARALLELISM=false\nAPI_TOKEN=\nX_PASSWORD=" + "x" * 20,
        "/home/trainer/.cache/uv/sdists/.git": "",  # uv's, so that git stays out of it
        f"{SITE}/tornado/test.key": f"{KEY}\n{BODY}\n",
        f"{SITE}/tornado-6.5.dist-info/RECORD": f"tornado/test.key,sha256=x,{len(KEY + BODY) + 2}",
    }
    files = {path: (content.encode(), 0o644, 0) for path, content in innocent.items()}
    assert messages(read(layer(files))) == []
    changed = text(f"{SITE}/tornado/test.key", f"{KEY}\n{BODY}\n{BODY}")
    assert len(messages(read(layer({**files, **changed})))) == 1


def test_packages_and_caches_are_compared_with_the_locks() -> None:
    packages = {
        **wheel("tensorflow_cpu", "2.21.0", "tensorflow/a.so"),
        **wheel("numpy", "2.4.6", "numpy/a.py"),
        **wheel("stray", "1.0", "stray.py"),
        **plain("/usr/lib/python3/dist-packages/debians-1.egg-info/PKG-INFO"),
    }
    caches = plain("/var/lib/apt/lists/deb_Packages", "/home/a/.cache/uv/x", "/root/.cache/y")
    locked = {"tensorflow-cpu": "2.21.0", "numpy": "2.4.5", "keras": "3.15.1"}
    image = read(layer({**packages, **caches}), target="cpu", packages=locked)
    assert messages(image) == [
        "keras 3.15.1 is locked and not installed",
        "numpy is 2.4.6 in the image, the lock says 2.4.5",
        "installed and not locked: stray 1.0",
        "root's cache (1 bytes) was left in the image",
        "the system's packages (1 bytes) was left in the image",
        "uv's cache (1 bytes) was left in the image",
    ]
    seen = contents.run(image)[1]
    assert seen["packages"] == {"numpy": "2.4.6", "stray": "1.0", "tensorflow-cpu": "2.21.0"}
    assert messages(read(layer({**packages, **caches}))) == [], "others have no locks"


def test_two_packages_with_other_bytes_for_one_file_are_refused() -> None:
    """The same bytes are a namespace, and tests at the top are nobody's."""
    one, other = "a", "b"
    both = {
        f"{SITE}/cv2/cv2.abi3.so": (one, other), f"{SITE}/cv2/version.py": (one, other),
        f"{SITE}/google/__init__.py": (one, one), f"{SITE}/tests/conftest.py": (one, other),
    }  # fmt: skip
    records = {
        f"{SITE}/{name}-4.1.dist-info/RECORD": "".join(
            f"{path.removeprefix(f'{SITE}/')},sha256={digests[which]},1\n"
            for path, digests in both.items()
        )
        for which, name in enumerate(("opencv_python", "opencv_python_headless"))
    }
    vendored = "setuptools/_vendor/wheel-1.dist-info/RECORD"
    records[f"{SITE}/{vendored}"] = "wheel-1.dist-info/RECORD,,\n"
    records[f"{SITE}/setuptools-80.dist-info/RECORD"] = f"{vendored},sha256={'c' * 43},1\n"
    files = plain(*both)
    for path, said in records.items():
        files |= text(path, said)
    locked = {"opencv-python": "4.1", "opencv-python-headless": "4.1", "setuptools": "80"}
    (message,) = messages(read(layer(files), target="cpu", packages=locked))
    named = "opencv-python 4.1 and opencv-python-headless 4.1 install other files as "
    assert message.startswith(f"{named}{SITE}/cv2/cv2.abi3.so")
    assert "google" not in message and "conftest" not in message


# --- files that nobody accounts for ---------------------------------------------------------------

BASE = layer(
    plain(
        "/usr/bin/tool",
        "/usr/lib/x86_64-linux-gnu/libtool.so.1",
        "/usr/lib/python3.11/os.py",
        f"{SITE}/a/__init__.py",
        f"{SITE}/a.pth",
    ),
    {"/bin": "usr/bin", "/usr/bin/also": "/etc/alternatives/also",
     "/etc/alternatives/also": "/usr/bin/tool"},
)  # fmt: skip
VARIABLES = [
    "PATH=/opt/venv/bin:/usr/local/bin/:/bin",
    "PYTHONPATH=/srv/modules",
    "LD_LIBRARY_PATH=/opt/libraries",
]


def ours(*above: bytes) -> list[str]:
    return messages(read(BASE, *above, target="cpu", Env=VARIABLES))


def test_base_program_and_bytecode_are_accounted_for_but_for_moved_links() -> None:
    bytecode = "__pycache__/__init__.cpython-311.pyc"
    added = plain("/app/task.py", f"{SITE}/a/{bytecode}", "/opt/data/weights.bin", "/etc/hosts")
    assert ours(layer(added, {"/usr/local/bin/python": "/usr/bin/tool"})) == []
    moved = layer(plain("/opt/evil"), {"/etc/alternatives/also": "/opt/evil"})
    (message,) = ours(moved)
    assert message.startswith("nobody accounts for /usr/bin/also: ")


@pytest.mark.parametrize(
    "path",
    [
        f"{SITE}/zz_evil.pth",
        f"{SITE}/a/__pycache__/other.cpython-311.pyc",
        "/home/trainer/.local/lib/python3.11/site-packages/usercustomize.py",
        "/usr/lib/python3.11/sitecustomize.py",
        "/srv/modules/sitecustomize.py",
        "/usr/bin/python3",
        "/usr/bin/tool",
        "/usr/local/bin/ls",
        "/usr/lib/x86_64-linux-gnu/libc.so.7",
        "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libtool.so.1",
        "/etc/ld.so.preload",
        "/etc/ld.so.conf.d/evil.conf",
        "/opt/libraries/libtool.so.1",
    ],
)
def test_a_file_that_nobody_accounts_for_is_refused_where_it_would_be_run(path: str) -> None:
    wrong = f"nobody accounts for {path}: no locked package brings it, and it would be run"
    if path == "/usr/bin/tool":  # which a link of the base leads to
        wrong = wrong.replace(path, f"/usr/bin/also, {path}")
    assert ours(layer(plain(path))) == [wrong]
    data = layer(plain("/opt/data/weights.bin"))
    link = layer({}, {path: "/opt/data/weights.bin"})
    assert ours(data, link) == [wrong]
    assert messages(read(BASE, layer(plain(path)), Env=VARIABLES)) == [], "others have no locks"
