# `translume serve` as an image: models come in at /models, settings at /etc/translume, keys and counts live in /data.
#   docker build -t translume .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" translume /models/en-de --host 0.0.0.0
# docs/deploy.md has more: keys, two replicas behind nginx.

FROM python:3.12-slim AS build
# The CPU's torch: the plain one brings gigabytes of CUDA.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/translume
WORKDIR /source
COPY pyproject.toml requirements.lock README.md LICENSE ./
# First what changes seldom: everything but Translume itself.
RUN mkdir -p src/translume && touch src/translume/__init__.py \
    && /opt/translume/bin/pip install --constraint requirements.lock '.[serve]'
COPY src ./src
RUN /opt/translume/bin/pip install --no-deps --force-reinstall .

FROM python:3.12-slim
# The engine compiles its kernels for the machine that it runs on, at the first start.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin translume \
    && install --directory --owner=translume --mode=0700 /data
COPY --from=build /opt/translume /opt/translume
ENV PATH=/opt/translume/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TRANSLUME_CACHE=/data/cache
USER translume
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=9)"]
ENTRYPOINT ["translume", "serve"]
CMD ["--config", "/etc/translume/serve.toml"]
