"""The shapes of 37 public repositories' files, in words of our own: framework and release.

repositories/README.md names them. A row is what decides: the base, and the commands that install;
other lines are left out, or another of their kind stands for them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.init import proposal as init
from tests.init.test_brought import lines, said

REQUIREMENTS = "requirements.txt", "tqdm\npandas==2.2.3\n"
INSTALL = (
    "WORKDIR /app\nCOPY requirements.txt .\nRUN pip install --no-cache-dir -r requirements.txt\n"
)
AWS = "763104351884.dkr.ecr"
OLD, NEW, TF = ("torch", "2.7.1"), ("torch", "2.15.0"), ("tensorflow", "2.21.0")

# name -> the Dockerfile, the framework and the release of image.yaml, other files
ROWS: dict[str, tuple[str, tuple[str, str], dict[str, str]]] = {
    "AnimeGAN": (f"FROM pytorch/pytorch:1.10.0-cuda11.3-cudnn8-runtime\n{INSTALL}", OLD, {}),
    "PyTorch-Deep-SVDD": (f"FROM loopbackkr/pytorch:1.11.0-cuda11.3-cudnn8\n{INSTALL}", OLD, {}),
    "EQ-RA": (f"FROM pytorch/pytorch:1.10.0-cuda11.3-cudnn8-devel\n{INSTALL}COPY . .\n", OLD, {}),
    "signal2image": (f"FROM pytorch/pytorch\n{INSTALL}COPY . .\n", NEW, {}),
    "SDO-FM": (
        "FROM us-docker.pkg.dev/vertex-ai/training/pytorch-tpu.2-0:latest\nCOPY . /src\n"
        'RUN chmod +x /src/setup.sh\nRUN /src/setup.sh\nENTRYPOINT ["python", "/src/main.py"]\n',
        OLD,
        {"main.py": "print(1)\n"},
    ),
    "smddp-yolov5-example": (
        f"ARG region\n\n#FROM {AWS}.us-west-2.amazonaws.com/tensorflow-training:2.18\n"
        f"FROM {AWS}.${{region}}.amazonaws.com/pytorch-training:1.12.0-gpu-py38-cu113-ubuntu20.04\n"
        "RUN pip install tensorboard protobuf==3.20.1\n",
        OLD,
        {},
    ),
    "neural-vit": (
        f"FROM us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-2.py310:latest\n{INSTALL}"
        'ENTRYPOINT ["python", "-m", "vit.training.train"]\n',
        OLD,
        {"vit/training/train.py": "import torch\n"},
    ),
    "mlflow_test": (
        f"FROM pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime\n{INSTALL}"
        'CMD ["python", "train.py"]\n',
        OLD,
        {"train.py": "import torch\n"},
    ),
    "koyeb-fun-training": (
        "FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime\nWORKDIR /app\n"
        f"RUN apt-get update && apt-get install -y git\n{INSTALL}COPY train.py .\n",
        OLD,
        {"train.py": "import torch\n"},
    ),
    "ec2_ml": (
        "FROM tensorflow/tensorflow:latest-gpu\nCOPY ./requirements.txt /srv/requirements.txt\n"
        "RUN pip install --no-deps --trusted-host index.example.org -r requirements.txt\n",
        TF,
        {},
    ),
    "design-challenge": (
        "FROM tensorflow/tensorflow:latest-gpu\nCOPY requirements.txt /tmp/\n"
        "RUN pip install --no-cache-dir -r /tmp/requirements.txt\n",
        TF,
        {},
    ),
    "zero-shot-comm": (
        "FROM tensorflow/tensorflow:latest-gpu-jupyter\nRUN python -m pip install --upgrade pip\n"
        "COPY docker-requirements.txt ./requirements.txt\n"
        "RUN python -m pip  install -r requirements.txt\n",
        TF,
        {"docker-requirements.txt": "jupyter\n"},
    ),
    "punctuation_corrector": (
        'FROM tensorflow/tensorflow:latest-gpu\nLABEL maintainer="a@example.org"\n'
        "COPY requirements.txt /tmp/\nRUN pip install --requirement /tmp/requirements.txt\n",
        TF,
        {},
    ),
    "fast-jl-binary": (
        "FROM nvidia/cuda:12.9.1-devel-ubuntu22.04 AS build\n"
        "COPY --from=ghcr.io/astral-sh/uv:latest /uv /uvx /bin/\nRUN uv venv\n"
        'RUN uv pip install torch "pip<25.3" wheel\nENTRYPOINT [ "/build/entrypoint.sh" ]\n',
        NEW,
        {},
    ),
    "vivsim": (
        'FROM python:3.10\nRUN pip install --upgrade "jax[cuda12_pip]" -f '
        "https://storage.googleapis.com/jax-releases/jax_cuda_releases.html\n"
        "RUN pip install tqdm matplotlib numpy\n",
        ("jax", "0.12.0.1"),
        {},
    ),
    "parler-tts": (
        "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04\nENV DEBIAN_FRONTEND=noninteractive\n"
        "RUN apt-get -y update && apt-get -y upgrade\n"
        "RUN apt-get -y install -no-install-recommends \\\n"
        "    git \\\n    curl\nADD https://example.org/install.sh /installer.sh\n"
        'ENV PATH="/opt/local/bin:$PATH"\nRUN uv sync\nCMD [ "sleep", "infinity" ]\n',
        NEW,
        {"setup.py": "from setuptools import setup\nsetup(install_requires=['torch', 'rich'])\n"},
    ),
    "DAIN": (
        "FROM nvcr.io/nvidia/pytorch:18.08-py3\nCOPY environment.yaml /\n"
        "RUN conda env create -f /environment.yaml\n",
        ("torch", "2.7.1"),
        {"environment.yaml": "dependencies:\n  - python=3.6.8\n  - pytorch=1.0.1\n"},
    ),
    "resnet": (
        f'FROM pytorch/pytorch\nWORKDIR /\n{INSTALL}ENTRYPOINT ["python", "train.py"]\n',
        NEW,
        {},
    ),
    "image-classification": (
        "FROM pytorch/pytorch:1.7.0-cuda11.0-cudnn8-runtime\n"
        "RUN python -m pip install -U pip setuptools \\\n && pip install Pillow tqdm\n"
        'ENV PYTHONPATH "${PYTHONPATH}:/app"\nENTRYPOINT ["python", "/app/train.py"]\n',
        OLD,
        {"train.py": "import torch\n"},
    ),
    "StructureFree-DTA": (
        f"FROM pytorch/pytorch:2.0.1-cuda11.7-cudnn8-runtime\n{INSTALL}RUN chmod +x train.sh\n"
        'ENTRYPOINT ["./train.sh"]\nCMD ["config.yaml"]\n',
        OLD,
        {},
    ),
    "stripedhyena": (
        "FROM nvcr.io/nvidia/pytorch:23.04-py3\nRUN git clone https://example.org/attention.git\n"
        "RUN cd attention/csrc && python setup.py install\n"
        "RUN pip install ninja deepspeed==0.10.3 einops\n",
        NEW,
        {},
    ),
    "build-docker-image": (
        "FROM nvcr.io/nvidia/pytorch:23.06-py3\n"
        "RUN pip install --no-cache-dir --upgrade pip && \\\n"
        "    pip install --no-cache-dir deepspeed==0.9.5\nENTRYPOINT /usr/sbin/sshd -D && bash\n",
        NEW,
        {},
    ),
    "Yuan-Image": (
        "FROM nvcr.io/nvidia/pytorch:22.08-py3\n"
        "RUN pip install pytorch-lightning tqdm accelerate && pip uninstall -y torchtext\n"
        "RUN cd ~ && git clone https://example.org/a.git && cd a && "
        "pip install -r requirements.txt\n",
        NEW,
        {},
    ),
    "llm-finetune": (
        "# https://hub.docker.com/layers/winglian/axolotl/main-py3.11-cu121-2.1.2\n"
        "FROM --platform=linux/amd64 winglian/axolotl@sha256:ace38a300833\nUSER root\n"
        "RUN pip install -U pip wheel setuptools && \\\n    pip uninstall -y mlflow axolotl && \\\n"
        "    pip install --no-build-isolation -e .[deepspeed]\n",
        NEW,
        {},
    ),
    "TSAI-Assignment12": (
        f"FROM {AWS}.us-east-1.amazonaws.com/pytorch-training:1.12.1-gpu-py38-cu113-ubuntu20.04-"
        "sagemaker\nRUN pip3 install sagemaker-training\nRun pip install -r requirements.txt \n"
        'ENV PYTHONUNBUFFERED=1 \\\n    LD_LIBRARY_PATH="${LD_LIBRARY_PATH}:/usr/local/lib"\n',
        OLD,
        {},
    ),
    "transformers-sagemaker": (
        f"FROM {AWS}.us-east-2.amazonaws.com/pytorch-training:1.5.0-gpu-py36-cu101-ubuntu16.04\n"
        "RUN cd transformers/ && \\\n    python3 -m pip install --no-cache-dir .\n"
        "ENV SAGEMAKER_PROGRAM train.py\n",
        OLD,
        {},
    ),
    "ludo_rl_bot": (
        "FROM registry.example.org:5001/ubuntu20_py3_9:v2\nCOPY ./pip.conf /etc/pip.conf\n"
        "RUN /usr/local/bin/pip3.8 install --upgrade --no-cache-dir -r requirements.txt\n",
        ("tensorflow", "2.15.1"),
        {"requirements.txt": "tensorflow==2.10.0\nours\n"},
    ),
    "Looking-into-Prefect": (
        "FROM python:3.12\nARG INDEX\nCOPY ./requirements.txt /requirements.txt\n"
        "RUN pip install --extra-index-url ${INDEX} -r /requirements.txt\n",
        TF,
        {"requirements.txt": "ours\nkeras\n"},
    ),
    "pytorch-ssdir": (
        "FROM piotrekzie100/horovod:0.20.0-pytorch1.6.0-py38-cuda10.2\n"
        "ARG U\nARG P\nADD dist/* ./\n"
        "RUN pip install *.whl --extra-index-url=https://${U}:${P}@pypi.example.org/simple\n",
        OLD,
        {},
    ),
    "cuda": (
        "ARG BASE\n\nFROM $BASE\n\nLABEL version=$VERSION\n\nRUN pip3 install torch torchvision "
        "--index-url https://download.pytorch.org/whl/cu118 --no-cache\n",
        NEW,
        {},
    ),
    "stable-baselines3": (
        "ARG PARENT=mambaorg/micromamba:2.0\nFROM $PARENT\n"
        "ARG DEPS=https://download.pytorch.org/whl/cpu\nRUN micromamba install -y python=3.12\n"
        "RUN pip install uv && uv pip install --system torch --default-index ${DEPS} && \\\n"
        "    uv pip install --system -e .[extra] && uv pip uninstall opencv-python\n",
        NEW,
        {
            "setup.py": "from setuptools import setup\nsetup(install_requires=['torch>=2.8,<3'],\n"
            "  extras_require={'extra': ['rich'], 'docs': ['sphinx']})\n"
        },
    ),
    "dlrm": (
        "ARG BASE=pytorch/pytorch:1.3-cuda10.1-cudnn7-runtime\nFROM ${BASE}\n"
        "ADD requirements.txt .\nRUN pip install -r requirements.txt\n"
        "RUN pip install torch==1.3.1\n",
        OLD,
        {"requirements.txt": "torch\ntorchrec-nightly\n"},
    ),
    "stylegan3": (
        "FROM nvcr.io/nvidia/pytorch:21.08-py3\nENV PYTHONUNBUFFERED 1\n"
        "RUN pip install imageio pyspng==0.1.0\n"
        "RUN (printf '#!/bin/bash\\nexec \\\"$@\\\"\\n' >> /entry.sh) && chmod a+x /entry.sh\n"
        'ENTRYPOINT ["/entry.sh"]\n',
        OLD,
        {
            "environment.yml": "name: s\ndependencies:\n  - python >= 3.8\n  - pytorch=1.9.1\n"
            "  - cudatoolkit=11.1\n  - pip:\n    - pyspng\n"
        },
    ),
    "mmyolo": (
        'ARG PYTORCH="1.9.0"\nARG CUDA="11.1"\nFROM pytorch/pytorch:${PYTORCH}-cuda${CUDA}-devel\n'
        'RUN pip install openmim && \\\n    mim install "mmcv>=2.0.0rc4,<2.1.0"\n'
        "RUN git clone https://example.org/y.git /y && cd /y && mim install -e .\n",
        OLD,
        {
            "setup.py": "from setuptools import setup\nsetup(\n"
            "  install_requires=parse_requirements('requirements/runtime.txt'),\n"
            "  extras_require={'tests': parse_requirements('requirements/tests.txt')})\n",
            "requirements/runtime.txt": "prettytable\n",
        },
    ),
    "audiocraft": (
        "",
        OLD,
        {
            "requirements.txt": "torch==2.1.0\ntorchaudio>=2.0.0,<2.1.2\nxformers<0.0.23\n"
            "torchvision==0.16.0\ntorchtext==0.16.0\nhydra-core>=1.1\n"
        },
    ),
    "nanoGPT": ("", NEW, {"train.py": "import torch\nfrom model import GPT\n", "model.py": ""}),
    "pytorch-image-models": (
        "",
        NEW,
        {
            "train.py": "import timm\n",
            "pyproject.toml": '[project]\ndependencies = [\n    "torch >= 1.7",\n'
            '    "torchvision",\n]\n[project.optional-dependencies]\ndev = ["pytest"]\n',
        },
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_public_repository(name: str, tmp_path: Path) -> None:
    dockerfile, (framework, release), more = ROWS[name]
    files = dict([REQUIREMENTS]) | ({"Dockerfile": dockerfile} if dockerfile else {}) | more
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    proposal = init.propose(tmp_path, "t4")
    assert proposal.values.get(framework) == release
    every = [*proposal.findings.taken, *proposal.findings.left]
    for path, text in files.items():
        if not path.endswith(".py"):
            named = [line for line in lines(path, text) if not said(path, line, every)]
            assert named == [], (path, every)
    assert not any(text in str(proposal.values) for text in ("'ours'", "'off'"))
    readme = (Path(__file__).parent / "repositories/README.md").read_text()
    assert f"/{name}" in readme, "it names each"
