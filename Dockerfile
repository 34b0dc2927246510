# Image of `translume serve`. Mount models at /models and settings at /etc/translume; keys and usage counts are in /data.
#   docker build -t translume .
#   docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" translume /models/en-de --host 0.0.0.0
# See docs/deploy.md for API keys and for two replicas behind nginx.

FROM debian:bookworm-slim AS build
# Serving needs no torch. For documents, other heads and inspection: EXTRAS=serve,documents,train, and the CPU build of
# torch, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.
ARG EXTRAS=serve
ARG PIP_EXTRA_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# The compiler compiles the engine's kernels into the package; the final image needs none.
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv gcc libc6-dev binutils
RUN python3 -m venv /opt/translume
WORKDIR /source
COPY pyproject.toml hatch_build.py requirements.lock README.md LICENSE ./
# Install the dependencies first, so that their layer stays cached when only Translume changes.
RUN mkdir -p src/translume && touch src/translume/__init__.py \
    && TRANSLUME_NATIVE=0 /opt/translume/bin/pip install --constraint requirements.lock ".[$EXTRAS]"
COPY src ./src
# Without pip, the tests of packages and symbols for debuggers; a stripped library in numpy.libs cannot be loaded.
RUN /opt/translume/bin/pip install --no-deps --force-reinstall . \
    && /opt/translume/bin/pip uninstall --yes setuptools pip \
    && find /opt/translume -name tests -type d -prune -exec rm -r {} + \
    && find /opt/translume -name '*.so' -not -path '*.libs/*' -exec strip --strip-unneeded {} +

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends python3 && rm -r /var/lib/apt/lists/* \
    && useradd --system --uid 901 --no-create-home --shell /usr/sbin/nologin translume \
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
