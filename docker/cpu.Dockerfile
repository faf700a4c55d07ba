# Serves a model repository on any machine: the tritonserver of nvidia-pytriton, torch on the CPU, and `trt-build serve`.
# Build from the repository's root: docker-compose --profile cpu build
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv
COPY docker/local /local
RUN if [ -f /local/ca-certificates.crt ]; then cp /local/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt; fi
# torch's CPU build. PyPI's build adds gigabytes of CUDA, which this image does not use. Empty: PyPI, or a wheel in docker/local.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_FIND_LINKS=/local PIP_EXTRA_INDEX_URL=${TORCH_INDEX} \
    PIP_CONSTRAINT=/source/constraints.txt PIP_BUILD_CONSTRAINT=/source/constraints.txt \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_DEFAULT_TIMEOUT=120
WORKDIR /source
RUN python3 -m venv /opt/trt-build
# Dependencies have a separate layer, so a change of the code does not download them again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY builder/__init__.py builder/__init__.py
COPY templates templates
RUN /opt/trt-build/bin/pip install '.[server]'
COPY builder builder
RUN /opt/trt-build/bin/pip install --no-deps --force-reinstall .

FROM ${BASE}
# Triton's Python backend loads the shared libpython, which Debian keeps apart from the interpreter.
RUN apt-get update && apt-get install --yes --no-install-recommends python3 libpython3.11 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home triton
COPY --from=build /opt/trt-build /opt/trt-build
ENV PATH=/opt/trt-build/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER triton
EXPOSE 8000 8001 8002
# The exec form makes the parent of the server process 1, which receives `docker stop`. SIGINT stops it cleanly.
STOPSIGNAL SIGINT
CMD ["trt-build", "serve", "/models", "--address", "0.0.0.0"]
