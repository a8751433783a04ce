"""What a benchmark is asked to do, checked once, and kept beside its results so that it can only go on as it began."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cactus.bench.methods import MethodSpec
from cactus.bench.prompts import BenchPrompt
from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.limits import MAX_NEW_TOKENS
from cactus.pairs import Pair, find_pair
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.settings import MAX_SEED, DraftLength, check_whole

FILE, MEASUREMENTS = "plan.json", "measurements.jsonl"
MAX_REPEATS = 1000


@dataclass(frozen=True)
class Plan:
    """All that decides the results. `ValueError` names the first bad value.

    prompts: digest of ids and turns. loaded: what the pair turned out to be once loaded, empty before; how a drafter
    holds its weights is measured at load, and a benchmark must not go on with another choice.
    """

    pair: str
    methods: tuple[str, ...]
    draft_lengths: tuple[DraftLength, ...]
    peers: tuple[str, ...]
    prompts: str
    repeat: int
    max_new_tokens: int
    temperature: float
    seed: int
    device: str
    dtype: str
    processor: str
    versions: dict[str, str]
    loaded: str = ""

    def __post_init__(self) -> None:
        find_pair(self.pair)
        check_whole("repeat", self.repeat, 1, MAX_REPEATS)
        check_whole("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS)
        check_whole("seed", self.seed, 0, MAX_SEED)
        _ = self.sampling

    @property
    def sampling(self) -> SamplingParams:
        """For ours and for peers."""
        return SamplingParams(temperature=self.temperature)

    @property
    def request(self) -> RunRequest:
        """Of every run of ours, but for method, draft length, prompt and seed."""
        return RunRequest(
            pair=self.pair, sampling=self.sampling, max_new_tokens=self.max_new_tokens, seed=self.seed, prompt="-"
        )


def names(methods: Sequence[MethodSpec]) -> tuple[str, ...]:
    """Methods as the plan keeps them."""
    return tuple(map(str, methods))


def prompts_digest(prompts: Sequence[BenchPrompt]) -> str:
    """Equal for equal prompts in the same order."""
    text = json.dumps([[prompt.id, prompt.turns] for prompt in prompts])
    count = f"{len(prompts)} prompt{'s' if len(prompts) > 1 else ''}"
    return f"{count}, sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def loaded(pair: Pair) -> str:
    """Weights, dtypes and device of a loaded pair in words."""
    drafter = f"; drafter's weights held as {pair.draft_weights}" if pair.draft_weights else ""
    caches = f"; {pair.caches}" if pair.caches else ""
    threads = f", {torch.get_num_threads()} threads" if pair.device.type == "cpu" else ""
    return f"{pair.dtype} on {pair.device}{threads}; verifier's weights: {pair.weights}{drafter}{caches}"


def settle(plan: Plan, folder: Path, resume: bool) -> None:
    """Make the folder and keep the plan in it; `CactusError` if it holds another benchmark, or one to be resumed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CactusError(f"--out is {str(folder)!r}; a folder that can be made is needed ({error.strerror})") from None
    kept = _read(folder / FILE)
    if kept is None:
        if (folder / MEASUREMENTS).exists():
            raise CactusError(f"{folder} holds measurements without the {FILE} they were made by; choose another --out")
        write_whole(folder / FILE, json.dumps(asdict(plan), indent=1) + "\n")
        return
    if not resume:
        raise CactusError(f"{folder} holds a benchmark; add --resume to go on with it, or choose another --out")
    wanted = json.loads(json.dumps(asdict(plan)))
    for name, value in wanted.items():
        if kept.get(name) != value:
            raise CactusError(
                f"{folder} holds a benchmark with {name} {kept.get(name)!r}, asked for is {value!r}; "
                "give the same settings, or choose another --out"
            )


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CactusError(f"{path} cannot be read ({error}); choose another --out") from None
