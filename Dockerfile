# Trains CartPole, then serves the page over all runs:
#
#     docker build -t asyncrl .
#     docker run --rm --init --network host asyncrl
#
# Open http://127.0.0.1:8000. The page listens on loopback, of which --network host makes the host's: no other machine can
# reach it. Any command goes behind the image's name; `-v "$PWD/runs:/home/trainer/runs"` keeps the runs.
FROM python:3.12-slim-bookworm

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /src
COPY pyproject.toml constraints-cpu.txt README.md LICENSE ./
COPY asyncrl asyncrl
# PyTorch's own index has the build without CUDA, whose version (2.13.0+cpu) is the newer one for pip.
RUN pip install --constraint constraints-cpu.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[plot]' && \
    useradd --create-home --uid 1000 trainer

USER 1000
WORKDIR /home/trainer
ENV ASYNCRL_RUNS=/home/trainer/runs OMP_NUM_THREADS=1
# Numba keeps the compiled kernels in the user's cache.
RUN mkdir runs && asyncrl train CartPole-v1 --algo dqn --steps 2k --http off --target-eval-episodes 1 --run-dir none

EXPOSE 8000
CMD ["sh", "-c", "asyncrl train CartPole-v1 --algo dqn --target-return 475 --max-seconds 120 --http 8000 && exec asyncrl ui --port 8000"]
