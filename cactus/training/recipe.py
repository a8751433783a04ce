"""The recipe for a draft model on a verifier's embeddings and output head, from that verifier and nothing else.

Sample text, choose the vocabulary, train, write the folder, evaluate what was written.
Each stage leaves files in a work folder, from which a stopped run goes on. Knows
nothing of argument parsing.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.training import corpus
from cactus.training.data import Dataset, likely_tokens
from cactus.training.evaluate import Acceptance, Answer, acceptance_by_position, held_out_answers
from cactus.training.fit import Listener, run_to_end, started
from cactus.training.kinds import DraftKind
from cactus.training.prompts import held_out_prompts
from cactus.training.steps import STEPS_FILE, StepLog
from cactus.training.train import Checkpoints, Trainer, TrainingPlan

_CORPUS, _CHECKPOINT = "corpus", "training.pt"


@dataclass(frozen=True)
class Recipe:
    """What the user may choose."""

    minutes: float
    sampling_share: float = 0.5
    num_prompts: int = 40_000
    sampling_batch: int = 128
    max_new_tokens: int = 200
    vocabulary: int = 16_384
    start_from: Path | None = None  # folder of a draft model to improve
    batch_size: int = 32
    learning_rate: float = 0.01
    temperatures: tuple[float, ...] = (1.0, 0.7)
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.minutes > 0, f"minutes is {self.minutes}; it must be above 0")
        _require(
            0 < self.sampling_share < 1,
            f"sampling_share is {self.sampling_share}; it must lie between 0 and 1",
        )
        _require(self.vocabulary >= 64, f"vocabulary is {self.vocabulary}; at least 64 tokens")
        _require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}; above 0")

    @property
    def sampling_seconds(self) -> float:
        return 60 * self.minutes * self.sampling_share

    @property
    def training_seconds(self) -> float:
        return 60 * self.minutes - self.sampling_seconds


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CactusError(message)


@dataclass(frozen=True)
class Verifier:
    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]


def require_llama(model: PreTrainedModel) -> LlamaForCausalLM:
    if not isinstance(model, LlamaForCausalLM):
        raise CactusError(f"the recipe trains for Llama verifiers, not for {type(model).__name__}")
    return model


def prepare(work: Path, resume: bool) -> None:
    """A fresh run wants an empty work folder, so that it cannot mix with an older one."""
    if not resume and work.exists() and any(work.iterdir()):
        raise CactusError(f"{work} holds an earlier run; go on with it by --resume, or remove it")
    work.mkdir(parents=True, exist_ok=True)


def make(
    verifier: Verifier, kind: DraftKind[Any], recipe: Recipe, work: Path, out: Path, tell: Listener
) -> list[Acceptance]:
    """All stages; writes `out` and returns its measured acceptance, one entry a temperature."""
    begin = time.monotonic()
    checkpoints = Checkpoints(work / _CHECKPOINT)
    saved = checkpoints.load() if checkpoints.path.exists() else None
    _sample(verifier, recipe, work, saved, tell)
    answers = {t: _answers(verifier, t, tell) for t in recipe.temperatures}
    verifier.model.float()  # master weights of what is trained, exact scores of what is evaluated
    trainer, token_ids = _train(verifier, kind, recipe, work, checkpoints, saved, tell)
    kind.save(out, trainer.student, token_ids)
    drafters, results = kind.drafters(out, verifier.model), []
    for temperature, texts in answers.items():
        tell("evaluate", len(results), len(answers))
        vocab_size = verifier.model.config.vocab_size
        results.append(acceptance_by_position(verifier.model, drafters, vocab_size, texts, temperature))
    _record(out, trainer, recipe, results, time.monotonic() - begin)
    return results


def _sample(verifier: Verifier, recipe: Recipe, work: Path, saved: dict[str, Any] | None, tell: Listener) -> None:
    """saved: the checkpoint of a training that has begun; what is damaged of its text is sampled again, no more."""
    batches = corpus.plan(verifier.tokenizer, recipe.num_prompts, recipe.sampling_batch, recipe.seed)
    begin, tokens = time.monotonic(), 0
    if saved is not None:
        eos_ids, length = list(verifier.eos_ids), recipe.max_new_tokens
        corpus.repair(work / _CORPUS, verifier.model, batches, eos_ids, length, saved["rows"])
        return
    tell("sample", 0, recipe.sampling_seconds, f"up to {len(batches)} batches of {recipe.sampling_batch} prompts")

    def on_chunk(count: int) -> None:
        nonlocal tokens
        tokens += count
        tell("sample", time.monotonic() - begin, recipe.sampling_seconds, f"{tokens:,} tokens")

    corpus.grow(
        work / _CORPUS,
        verifier.model,
        batches,
        list(verifier.eos_ids),
        recipe.sampling_seconds,
        recipe.max_new_tokens,
        on_chunk,
    )


def _answers(verifier: Verifier, temperature: float, tell: Listener) -> list[Answer]:
    tell("hold out", 0, 1, f"temperature {temperature}")
    prompts = held_out_prompts()
    return held_out_answers(verifier.model, verifier.tokenizer, prompts, temperature, eos_ids=verifier.eos_ids)


def _train(
    verifier: Verifier,
    kind: DraftKind[Any],
    recipe: Recipe,
    work: Path,
    checkpoints: Checkpoints,
    saved: dict[str, Any] | None,
    tell: Listener,
) -> tuple[Trainer[Any], Tensor]:
    chunks = corpus.whole_chunks(work / _CORPUS)
    data = Dataset(chunks if saved is None else _as_before(chunks, saved["rows"]))
    required = {*verifier.eos_ids, *verifier.tokenizer.all_special_ids}
    head = verifier.model.lm_head.weight
    token_ids = likely_tokens(data.chunks, head, recipe.vocabulary, sorted(required))

    def fresh(plan: TrainingPlan) -> Trainer[Any]:
        return Trainer(kind.begin(verifier.model, token_ids, recipe.start_from), data, plan)

    plan = TrainingPlan(1, recipe.batch_size, recipe.learning_rate, seed=recipe.seed)
    trainer = started(plan, recipe.training_seconds, fresh, checkpoints)
    run_to_end(trainer, "train", checkpoints, StepLog(work / STEPS_FILE), tell)
    return trainer, token_ids


def _as_before(chunks: Iterable[Any], rows: int) -> list[Any]:
    """The chunks a checkpoint was trained on: the first ones, `rows` answers in all."""
    kept, count = [], 0
    for chunk in chunks:
        if count < rows:
            kept.append(chunk)
            count += len(chunk.ids)
    if count != rows:
        raise CactusError(f"the checkpoint was trained on {rows} answers; {count} are left")
    return kept


def _record(out: Path, trainer: Trainer[Any], recipe: Recipe, results: list[Acceptance], seconds: float) -> None:
    record = {
        "recipe": asdict(recipe) | {"start_from": recipe.start_from and recipe.start_from.name},
        "plan": asdict(trainer.plan),
        "sampled_tokens": trainer.data.num_tokens,
        "answers": len(trainer.data.rows),
        "minutes_of_last_run": round(seconds / 60, 1),
        "torch": torch.__version__,
        "acceptance": [asdict(result) for result in results],
    }
    write_whole(out / "training.json", json.dumps(record, indent=2) + "\n")
