# The base: OS root, Python, NVIDIA's libraries, TensorFlow. `builder render` wrote this; change templates/ or the lock.
# It names no target: images whose bases have the same content share one.
FROM debian:bookworm-slim
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    VIRTUAL_ENV=/opt/venv \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# The driver is the host's: NVIDIA's container toolkit mounts it because of NVIDIA_*, and Google's nodes put it at the path.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# Python, and the certificates that gs:// is verified with.
RUN --mount=type=bind,source=apt.lock,target=/run/apt.lock \
    --mount=type=cache,id=apt-bookworm,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=apt-lists-bookworm,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=secret,id=network --mount=type=secret,id=ca \
    --mount=type=secret,id=apt --mount=type=secret,id=apt-sources <<'END'
# install apt.lock
set -eu
began=$(date +%s)
[ ! -f /run/secrets/network ] || . /run/secrets/network
export DEBIAN_FRONTEND=noninteractive
apt-get update
sed '/^[#[:space:]]/d' /run/apt.lock | xargs apt-get install --yes --no-install-recommends
# Logs, and the previous version of a database, hold the time of the build.
rm -rf /var/log/apt /var/log/*.log /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/cache/ldconfig/aux-cache
find /etc /home /opt /usr /var -xdev \( -path /etc/hosts -o -path /etc/resolv.conf -o -path /var/cache/apt \
    -o -path /var/cache/uv -o -path /var/lib/apt/lists \) -prune \
    -o -newermt "@$((began - 1))" -exec touch --no-dereference --date=@315532800 {} +
END

# Who runs the trainer, where it lies, and the environment that the wheels go into. Written by hand: useradd would leave
# today's date in /etc/shadow.
RUN <<'END'
# make the user, /app and the environment
set -eu
began=$(date +%s)
echo 'trainer:x:1000:1000::/home/trainer:/usr/sbin/nologin' >> /etc/passwd
echo 'trainer:x:1000:' >> /etc/group
mkdir /app /home/trainer
chown 1000:1000 /app /home/trainer
python3 -m venv --without-pip /opt/venv
find /etc /home /opt /usr /var /app -xdev \( -path /etc/hosts -o -path /etc/resolv.conf -o -path /var/cache/apt \
    -o -path /var/cache/uv -o -path /var/lib/apt/lists \) -prune \
    -o -newermt "@$((began - 1))" -exec touch --no-dereference --date=@315532800 {} +
END

WORKDIR /app

# NVIDIA's libraries: the largest layer, and the one that changes least.
# The folder is this step's alone, no WORKDIR to leave behind.
# hadolint ignore=DL3003
RUN --mount=type=bind,source=cuda.lock,target=/run/cuda.lock \
    --mount=type=bind,from=uv,source=uv,target=/run/uv \
    --mount=type=cache,id=uv,target=/var/cache/uv \
    --mount=type=secret,id=network --mount=type=secret,id=ca <<'END'
# install cuda.lock
set -eu
began=$(date +%s)
[ ! -f /run/secrets/network ] || . /run/secrets/network
export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy PYTHONHASHSEED=0
/run/uv pip install --no-deps --require-hashes --requirement /run/cuda.lock
cd /opt/venv/lib/python3.11/site-packages
# What TensorFlow never loads: its loader asks for cudart, cublas, cublasLt, cudnn, cufft, cupti, cusolver, cusparse, nccl,
# nvml and nvJitLink, cuDNN for nvrtc, and XLA runs ptxas with libdevice. In MB: unpacked, of CUDA 12.5; "-" is none there.
rm -rf nvidia/*/include nvidia/cuda_nvcc/nvvm/include  #  9.5  headers, for compilers
rm -f nvidia/*/lib/*.a                              #     -  static libraries, for linkers
rm -f nvidia/cusolver/lib/libcusolverMg.so*         #  90.2  cuSOLVER on several GPUs at once
rm -f nvidia/cufft/lib/libcufftw.so*                #   2.1  cuFFT under FFTW's interface
rm -f nvidia/cublas/lib/libnvblas.so*               #   0.8  cuBLAS under BLAS's interface
rm -f nvidia/cuda_nvrtc/lib/libnvrtc*.alt.so*       #     -  a second build of NVRTC, in CUDA 12.9
rm -rf nvidia/cuda_nvcc/nvvm/lib64                  #  27.4  libnvvm, which nvcc compiles with; XLA has its own
rm -f nvidia/cuda_cupti/lib/libnvperf_*.so* nvidia/cuda_cupti/lib/libpcsamplingutil.so* \
      nvidia/cuda_cupti/lib/libcheckpoint.so*       #  36.1  for Nsight; the profiler loads libcupti alone
# The loader has to know them: cuDNN looks for libnvrtc, and TensorFlow for libnvJitLink, where neither wheel puts it.
printf '%s\n' nvidia/*/lib | sed "s|^|$PWD/|" > /etc/ld.so.conf.d/cuda.conf
ldconfig -X
rm -f /var/cache/ldconfig/aux-cache
find "$PWD" -name '*.py' -newermt "@$((began - 1))" -print0 | sort --zero-terminated | xargs --null --no-run-if-empty \
    --max-args=200 --max-procs="$(nproc)" python -m compileall -qq --invalidation-mode unchecked-hash || true
find /etc /home /opt /usr /var -xdev \( -path /etc/hosts -o -path /etc/resolv.conf -o -path /var/cache/apt \
    -o -path /var/cache/uv -o -path /var/lib/apt/lists \) -prune \
    -o -newermt "@$((began - 1))" -exec touch --no-dereference --date=@315532800 {} +
END

# TensorFlow and all it needs.
# The folder is this step's alone, no WORKDIR to leave behind.
# hadolint ignore=DL3003
RUN --mount=type=bind,source=tensorflow.lock,target=/run/tensorflow.lock \
    --mount=type=bind,from=uv,source=uv,target=/run/uv \
    --mount=type=bind,from=devicecode,target=/run/devicecode \
    --mount=type=cache,id=uv,target=/var/cache/uv \
    --mount=type=secret,id=network --mount=type=secret,id=ca <<'END'
# install tensorflow.lock
set -eu
began=$(date +%s)
[ ! -f /run/secrets/network ] || . /run/secrets/network
export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy PYTHONHASHSEED=0
/run/uv pip install --no-deps --require-hashes --requirement /run/tensorflow.lock
cd /opt/venv/lib/python3.11/site-packages
# What training never loads. In MB: unpacked, of TensorFlow 2.21.0.
rm -rf tensorflow/include                           # 411.1  headers, to compile operations; there is no compiler here
rm -rf tensorflow/xla_aot_runtime_src               #   0.2  sources, to link ahead-of-time compiled models
rm -rf tensorflow/compiler/mlir/stablehlo           #  26.2  StableHLO from Python: nothing in TensorFlow imports it
rm -f clang/native/libclang.so                      #  63.7  a requirement of TensorFlow's that nothing in it imports
rm -f numpy/*/lib/*.a                               #   0.1  static libraries, for linkers
rm -rf h5py/tests numpy/tests numpy/*/tests opt_einsum/tests  # 7.5  tests
find . -path './keras/*_test.py' -delete            #   4.0  tests

# Device code that the GPU cannot run becomes zeros: files keep their size, hashes in RECORD no longer match.
python -B /run/devicecode prune . --keep 9.0 --only tensorflow
# Python says in one line when it starts beside another GPU, whatever program it was started for.
cp /run/devicecode/announce.py training_image_gpu.py
echo 'import training_image_gpu; training_image_gpu.announce("9.0")' > training_image_gpu.pth
find "$PWD" -name '*.py' -newermt "@$((began - 1))" -print0 | sort --zero-terminated | xargs --null --no-run-if-empty \
    --max-args=200 --max-procs="$(nproc)" python -m compileall -qq --invalidation-mode unchecked-hash || true
find /etc /home /opt /usr /var -xdev \( -path /etc/hosts -o -path /etc/resolv.conf -o -path /var/cache/apt \
    -o -path /var/cache/uv -o -path /var/lib/apt/lists \) -prune \
    -o -newermt "@$((began - 1))" -exec touch --no-dereference --date=@315532800 {} +
END

# Python packages that image.yaml and the trainer add.
# The folder is this step's alone, no WORKDIR to leave behind.
# hadolint ignore=DL3003
RUN --mount=type=bind,source=extra.lock,target=/run/extra.lock \
    --mount=type=bind,from=uv,source=uv,target=/run/uv \
    --mount=type=cache,id=uv,target=/var/cache/uv \
    --mount=type=secret,id=network --mount=type=secret,id=ca <<'END'
# install extra.lock
set -eu
began=$(date +%s)
[ ! -f /run/secrets/network ] || . /run/secrets/network
export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy PYTHONHASHSEED=0
/run/uv pip install --no-deps --require-hashes --requirement /run/extra.lock
cd /opt/venv/lib/python3.11/site-packages
find "$PWD" -name '*.py' -newermt "@$((began - 1))" -print0 | sort --zero-terminated | xargs --null --no-run-if-empty \
    --max-args=200 --max-procs="$(nproc)" python -m compileall -qq --invalidation-mode unchecked-hash || true
find /etc /home /opt /usr /var -xdev \( -path /etc/hosts -o -path /etc/resolv.conf -o -path /var/cache/apt \
    -o -path /var/cache/uv -o -path /var/lib/apt/lists \) -prune \
    -o -newermt "@$((began - 1))" -exec touch --no-dereference --date=@315532800 {} +
END

LABEL training-image-factory.root="debian:bookworm-slim, made from 88 packages of Debian bookworm" \
      training-image-factory.cuda="12.5" \
      training-image-factory.cudnn="9.3.0.75" \
      training-image-factory.tensorflow="2.21.0" \
      training-image-factory.python="3.11"
