# Debian 13 with its own Python 3.13, and pip beside Debian's packages.
FROM scratch
ADD trixie.tar /
COPY wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels --break-system-packages tensorflow-cpu psutil nvidia-ml-py \
    && rm -r /wheels
COPY trainer /app/trainer
WORKDIR /app
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
ENTRYPOINT ["python3", "-m", "trainer.task"]
LABEL training-image-factory.accelerator="CPU" training-image-factory.kernels="native"
