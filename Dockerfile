# GRPO Lab in a container: the two commands, on the CPU or on an NVIDIA GPU.
#
#   docker build --target cpu -t grpolab .          docker run -v "$PWD/results:/lab/results" grpolab
#   docker build --target cuda -t grpolab:cuda .    docker run --gpus all -v ... grpolab:cuda make sweep STUDY=pretrained
#
# Without an argument it runs `make sweep`; `docker run grpolab make test` tests it. The results folder is a volume: run
# folders outlive the container, and on a shared file system they are where several of them meet. Nothing secret is
# built in: credentials of a tracking server or a database come from the environment (`docker run -e NAME`).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS base
# make runs the commands, a compiler is torch.compile's, git says which commit it is.
RUN apt-get update \
 && apt-get install -y --no-install-recommends make g++ git \
 && rm -rf /var/lib/apt/lists/*
# One's own number, so that results belong to whoever started it: docker build --build-arg UID=$(id -u)
ARG UID=1000
RUN useradd --create-home --uid ${UID} lab && mkdir /lab && chown lab: /lab
USER lab
WORKDIR /lab
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 PYTHONUNBUFFERED=1

FROM base AS cpu
COPY --chown=lab:lab . .
RUN TORCH_BACKEND=cpu make setup
VOLUME /lab/results
CMD ["make", "sweep"]

# torch's own wheels bring CUDA; the driver is the host's (NVIDIA container toolkit).
FROM base AS cuda
COPY --chown=lab:lab . .
RUN TORCH_BACKEND=pypi make setup
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /lab/results
CMD ["make", "sweep"]
