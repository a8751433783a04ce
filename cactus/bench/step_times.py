"""How long single passes take, as a run feeds them, and how long reading what they read takes at least."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from cactus.bench.ways import text_of, ways
from cactus.clock import wait
from cactus.interfaces import CachedModel
from cactus.models.quantized import Int8Linear
from cactus.models.slots import WIDEST

TEXT = 256  # tokens in the caches while steps are timed
TRIALS, WARMUP = 20, 3
COPY_BYTES = {"cuda": 1 << 30}
SMALL_COPY = 1 << 26


@dataclass(frozen=True)
class Step:
    """One kind of step. seconds: by the way it was run; weight_bytes: what it has to read at least."""

    model: str
    width: int
    seconds: dict[str, float]
    weight_bytes: int

    def share(self, bandwidth: float) -> float:
        """Of the bandwidth [bytes/s], by the fastest way."""
        return self.weight_bytes / bandwidth / min(self.seconds.values())


def time_steps(name: str, model: PreTrainedModel, widths: Sequence[int]) -> list[Step]:
    """Medians of passes behind a text of `TEXT` tokens, as a run feeds them."""
    text = text_of(TEXT + WIDEST, model.config.vocab_size)
    makers, held = ways(model), weight_bytes(model)
    models = {way: make() for way, make in makers.items()}
    for cached in models.values():
        cached.feed(text[:TEXT])
        cached.rewind(TEXT)
    return [
        Step(name, width, {way: _seconds(cached, text[TEXT:][:width]) for way, cached in models.items()}, held)
        for width in widths
    ]


def _seconds(cached: CachedModel, fed: list[int]) -> float:
    seconds = []
    for _ in range(WARMUP + TRIALS):
        began = time.perf_counter()
        cached.feed(fed, keep=len(fed))
        wait(cached.device)
        seconds.append(time.perf_counter() - began)
        cached.rewind(TEXT)
    return statistics.median(seconds[WARMUP:])


def weight_bytes(model: PreTrainedModel) -> int:
    """What a pass over one token reads of the weights: all but an embedding table that is not the output head too."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    looked_up = embeddings is not (head.exact if isinstance(head, Int8Linear) else head).weight
    rounded = {
        id(layer.exact.weight): layer.rounded.nbytes + layer.scale.nbytes
        for layer in model.modules()
        if isinstance(layer, Int8Linear)
    }
    weights = (weight for weight in model.parameters() if not (looked_up and weight is embeddings))
    return sum(rounded.get(id(weight), weight.nbytes) for weight in weights)


def measured_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy."""
    source = torch.ones(COPY_BYTES.get(device.type, SMALL_COPY), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(WARMUP + TRIALS):
        began = time.perf_counter()
        target.copy_(source)
        wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / statistics.median(seconds[WARMUP:])
