# One image for the server, the sites and the operator of a federation on Flower: docs/docker.md.
# It holds programs only. Keys, tables and results are mounted when a container starts.

FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
RUN python -m venv /opt/fairfate \
    && /opt/fairfate/bin/pip install --no-cache-dir ".[flower]"

FROM python:3.13-slim-bookworm
# The newest versions of Debian's security updates are wanted, not those of the day this was written.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends nginx-light openssl \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/fairfate /opt/fairfate
COPY --chmod=0755 docker/entrypoint docker/try-keys /usr/local/bin/
RUN useradd --uid 10001 --home-dir /state --no-create-home --shell /usr/sbin/nologin fairfate \
    && install -d -o fairfate -m 0700 /state

# Flower calls nobody, and installs nothing, unless asked to.
ENV PATH=/opt/fairfate/bin:$PATH \
    HOME=/state \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
WORKDIR /state
USER 10001
EXPOSE 8443
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["entrypoint", "healthy"]
ENTRYPOINT ["entrypoint"]
CMD ["fairfate", "--help"]
