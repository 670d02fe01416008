# Debian 13, and an environment of uv in /opt, found by PATH alone.
FROM scratch
ADD trixie.tar /
COPY wheels /wheels
COPY uv /wheels/uv
RUN /wheels/uv venv --quiet --python /usr/bin/python3 /opt/training \
    && /wheels/uv pip install --quiet --no-cache --no-index --find-links /wheels --python /opt/training \
        tensorflow-cpu psutil nvidia-ml-py \
    && rm -r /wheels
COPY trainer /app/trainer
ENV PATH=/opt/training/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
ENTRYPOINT ["python", "-m", "trainer.task"]
LABEL training-image-factory.accelerator="CPU" training-image-factory.kernels="native"
