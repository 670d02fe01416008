# Debian 12 with its Python 3.11, and packages in a folder that PYTHONPATH names; an account of its own.
FROM scratch
ADD bookworm.tar /
COPY wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels --target /srv/packages tensorflow-cpu psutil nvidia-ml-py \
    && rm -r /wheels && useradd --uid 4242 --create-home somebody
COPY trainer /home/somebody/trainer
WORKDIR /home/somebody
ENV PYTHONPATH=/srv/packages:/home/somebody PYTHONDONTWRITEBYTECODE=1
USER 4242
ENTRYPOINT ["/usr/bin/python3", "-m", "trainer.task"]
LABEL training-image-factory.accelerator="CPU" training-image-factory.kernels="native"
