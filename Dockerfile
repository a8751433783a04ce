# The demo with its default weights inside: `docker build -t cactus . && docker run -p 7860:7860 cactus`.
FROM python:3.11-slim

# User 1000, as free Docker Spaces require; nothing runs as root.
RUN useradd --create-home --uid 1000 user && install --directory --owner=user /home/user/app
USER 1000
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860
WORKDIR /home/user/app

# Dependencies alone first: this layer is rebuilt only when they change. For machines without a GPU,
# `--build-arg PIP_EXTRA_INDEX_URL=…` with PyTorch's CPU index saves several gigabytes.
ARG PIP_EXTRA_INDEX_URL
COPY --chown=1000 requirements.txt ./
RUN pip install --user --no-cache-dir -r requirements.txt

# Then what fetches weights, then the rest: editing the page does not download the weights again.
COPY --chown=1000 cactus ./cactus
COPY --chown=1000 assets ./assets
RUN python -m cactus fetch

COPY --chown=1000 . .
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/', timeout=4)"]
CMD ["python", "app.py"]
