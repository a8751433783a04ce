"""What single steps take: a draft step, verifier passes over 1 to 17 tokens, launched one by one or as graphs.

First it is checked that the device computes what the CPU does, in float32: logits close, greedy texts equal token for
token. Then steps are timed as a run makes them, and each is set against the time that reading the weights takes at
the memory's bandwidth: no pass over few tokens can be faster than that.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from cactus.acceptance import make_rule
from cactus.bench import machine
from cactus.bench.machine import in_words
from cactus.bench.shapes import Models, changed, models_of, random_model
from cactus.clock import wait
from cactus.commands.pairs import table
from cactus.decoding import decode
from cactus.drafters import ModelDrafter
from cactus.files import write_whole
from cactus.interfaces import CachedModel, ModelPair, Prompt
from cactus.models import HFModel, choose_device, choose_dtype
from cactus.models.graphs import CudaRecorder
from cactus.models.quantized import Int8Linear
from cactus.models.slots import WIDEST
from cactus.models.static import StaticPool, can_be_static
from cactus.pace import StepCosts
from cactus.sampling import SamplingParams
from cactus.versions import versions

TEXT = 256  # tokens in the caches while steps are timed
TRIALS, WARMUP = 20, 3
CHECKED_LAYERS = 4  # of a model with more parameters than this; computing all of it on a CPU would take too long
CHECKED_WHOLE = 500_000_000
CHECKED_TOKENS = 32
CLOSE = 1e-3  # largest difference between logits, in their standard deviations
COPY_BYTES = {"cuda": 1 << 30}
SMALL_COPY = 1 << 26
NO_COSTS = StepCosts(1.0, 1.0, 0.0)
LAUNCHED, STATIC, GRAPHS = "growing cache", "static cache", "graphs"

Make = Callable[[], CachedModel]


@dataclass(frozen=True)
class Numbers:
    """A codec whose texts are token ids. Implements `interfaces.TextCodec`."""

    vocab_size: int
    eos_ids: frozenset[int] = frozenset()

    def encode_prompt(self, prompt: Prompt, system: str = "") -> list[int]:
        return [int(token) for token in prompt]  # type: ignore[arg-type]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"{token} " for token in tokens)

    def describe(self, token: int) -> str:
        return str(token)


@dataclass(frozen=True)
class Bare:
    """A pair without a tokenizer, for fixed draft lengths. Implements `interfaces.ModelPair`."""

    new_verifier: Make
    new_draft: Make
    codec: Numbers
    name: str = "steps"
    dtype: str = "float32"
    weights: str = "given"
    draft_weights: str = ""
    caches: str = ""
    costs: StepCosts = NO_COSTS

    def new_drafter(self) -> ModelDrafter:
        return ModelDrafter(self.new_draft(), self.codec.vocab_size)


@dataclass(frozen=True)
class Check:
    """difference: the largest between logits, in standard deviations of the CPU's; tokens: greedy ones compared."""

    model: str
    layers: str
    difference: float
    tokens: int
    equal: int

    @property
    def passed(self) -> bool:
        return self.difference <= CLOSE and self.equal == self.tokens


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


def ways(model: PreTrainedModel) -> dict[str, Make]:
    """How passes of this model can be run here, the plainest first."""
    found: dict[str, Make] = {LAUNCHED: lambda: HFModel(model)}
    if can_be_static(model):
        found[STATIC] = StaticPool(model).new
        if model.device.type == "cuda":
            found[GRAPHS] = StaticPool(model, CudaRecorder).new
    return found


def text_of(count: int, vocab_size: int) -> list[int]:
    """Tokens without a meaning, the same ones every time."""
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(1)).tolist()


def check(name: str, model: PreTrainedModel, device: torch.device) -> Check:
    """The model's shape with random float32 weights: this device by its fastest way against the CPU."""
    config, layers = model.config, model.config.num_hidden_layers
    if model.num_parameters() > CHECKED_WHOLE:
        layers = min(layers, CHECKED_LAYERS)
    reference = random_model(changed(config, {"num_hidden_layers": layers}), torch.device("cpu"), torch.float32)
    there = copy.deepcopy(reference).to(device)  # type: ignore[arg-type]
    make = list(ways(there).values())[-1]
    wanted, found = (_greedy(new, config.vocab_size) for new in (lambda: HFModel(reference), make))
    return Check(
        model=name,
        layers=f"{layers} of {model.config.num_hidden_layers} layers",
        difference=_difference(HFModel(reference), make(), config.vocab_size),
        tokens=len(wanted),
        equal=sum(ours == theirs for ours, theirs in zip(found, wanted, strict=True)),
    )


def _difference(reference: CachedModel, other: CachedModel, vocab_size: int) -> float:
    """After passes of every width with a rewind behind each."""
    text, worst = text_of(WIDEST * (WIDEST + 1), vocab_size), 0.0
    for width in range(1, WIDEST + 1):
        fed = text[width * (width - 1) // 2 :][:width]
        wanted, found = (model.feed(fed, keep=width).logits.cpu() for model in (reference, other))
        worst = max(worst, float((wanted - found).abs().max() / wanted.std()))
        for model in (reference, other):
            model.rewind(model.length - width // 2)
    return worst


def _greedy(make: Make, vocab_size: int) -> list[int]:
    """Speculative with the model as its own draft model, and then without one: two texts in one list."""
    pair: ModelPair = Bare(make, make, Numbers(vocab_size))
    prompt, greedy = text_of(8, vocab_size), SamplingParams(temperature=0.0)
    settings = [(make_rule("sps"), 4), (None, 0)]
    runs = [decode(pair, prompt, rule, count, greedy, CHECKED_TOKENS, 0) for rule, count in settings]
    return [token.id for run in runs for round_ in run for token in round_.tokens if token.emitted]


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


def measure(models: Models, device: torch.device) -> dict[str, Any]:
    """The record of one machine and pair; progress goes to stderr."""
    parts = {"draft": models.draft, "verify": models.verifier}
    checks = []
    for name, model in parts.items():
        _say(f"checking {name} against the CPU")
        checks.append(check(name, model, device))
    _say("timing steps")
    bandwidth = measured_bandwidth(device)
    steps = time_steps("draft", models.draft, [1]) + time_steps("verify", models.verifier, range(1, WIDEST + 1))
    return {
        "pair": models.name,
        "weights": models.weights,
        "dtype": str(models.verifier.dtype).removeprefix("torch."),
        "parameters": {name: model.num_parameters() for name, model in parts.items()},
        "machine": machine.describe(device),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "text_tokens": TEXT,
        "bandwidth": bandwidth,
        "checks": [asdict(item) | {"passed": item.passed} for item in checks],
        "steps": [asdict(step) | {"bandwidth_share": step.share(bandwidth)} for step in steps],
    }


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Milliseconds by step and way, and the share of the bandwidth that the fastest way reached."""
    names = [name for name in (LAUNCHED, STATIC, GRAPHS) if any(name in step["seconds"] for step in record["steps"])]
    lines = [
        (
            f"{step['model']} {step['width']}",
            *(f"{1000 * step['seconds'][name]:.3f}" if name in step["seconds"] else "–" for name in names),
            f"{step['bandwidth_share']:.0%}",
        )
        for step in record["steps"]
    ]
    return [("step", *(f"{name} ms" for name in names), "of the bandwidth"), *lines]


def verdicts(record: dict[str, Any]) -> list[str]:
    """One line for each check against the CPU."""
    return [
        f"{'equal' if item['passed'] else 'NOT EQUAL'}: {item['model']} in float32 ({item['layers']}), logits within "
        f"{item['difference']:.1e} standard deviations, {item['equal']} of {item['tokens']} greedy tokens"
        for item in record["checks"]
    ]


def to_markdown(record: dict[str, Any]) -> str:
    """The report for reading."""
    head, *lines = rows(record)
    sizes = ", ".join(f"{name} {count / 1e6:,.0f} M parameters" for name, count in record["parameters"].items())
    facts = [
        f"- pair: {record['pair']}, {record['weights']}, {record['dtype']}; {sizes}",
        f"- machine: {in_words(record['machine'])}; a large copy moves {record['bandwidth'] / 1e9:,.0f} GB/s",
        f"- versions: {', '.join(f'{name} {version}' for name, version in record['versions'].items())}",
        f"- date: {record['date']}",
        *(f"- against the CPU: {line}" for line in verdicts(record)),
        f"- a step: tokens fed behind a text of {record['text_tokens']}, logits of all of them; medians of {TRIALS}. "
        "Of the bandwidth: time that reading the weights once takes at it ÷ time of the fastest way.",
    ]
    body = "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *lines])
    return "\n\n".join(["# Steps", f"```\n{record['command']}\n```", "\n".join(facts), body]) + "\n"


def run(
    source: str,
    draft: str | None,
    changes: dict[str, int],
    device: str,
    dtype: str,
    out: Path,
    command: str,
) -> int:
    """Check, time, print, and leave steps.json and steps.md in `out`; 1 if device and CPU do not compute the same."""
    where = choose_device(device)
    models = models_of(source, draft, changes, where, choose_dtype(dtype, where))
    record = {"command": command} | measure(models, where)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "steps.json", json.dumps(record, indent=2) + "\n")
    write_whole(out / "steps.md", to_markdown(record))
    sys.stdout.write("\n".join([table(rows(record)), *verdicts(record), f"report: {out / 'steps.md'}"]) + "\n")
    return 0 if all(item["passed"] for item in record["checks"]) else 1
