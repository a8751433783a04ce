"""The recipe for the pocket pair: verifier, draft model and vocabulary from nothing but a model that writes the texts.

Sample very short texts from the large model; clean them; make a vocabulary of them; train a deep and narrow verifier
on them; sample from it; train a one-layer draft model on its distributions; evaluate both as they were written. Each
stage leaves files in a work folder, from which a stopped run goes on. Knows nothing of argument parsing.
"""

import json
import time
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cactus.drafters import ModelDrafter
from cactus.errors import CactusError
from cactus.files import filling, write_whole
from cactus.models import HFModel
from cactus.training import corpus, texts
from cactus.training.data import Dataset
from cactus.training.evaluate import Acceptance, acceptance_by_position, held_out_answers
from cactus.training.fit import Listener, run_to_end, started
from cactus.training.prompts import held_out_prompts
from cactus.training.recipe import Verifier
from cactus.training.scratch import Shape, new_model, read_model, save_model
from cactus.training.steps import STEPS_FILE, StepLog
from cactus.training.students import Drafter, Writer
from cactus.training.text_data import TextDataset, TextRow
from cactus.training.train import Checkpoints, Trainer, TrainingPlan
from cactus.training.vocabulary import SMALLEST, train_tokenizer

PROMPTS = "pocket_prompts"
CONTEXT = 1024
_TOKENIZER = "tokenizer.json"  # the file without which the vocabulary is not whole


# Deep and narrow: speculative decoding needs a verifier whose step costs many of the draft model's.
VERIFIER = Shape(layers=20, hidden=128, inner=384, heads=4, kv_heads=2)
DRAFTER = Shape(layers=1, hidden=256, inner=896, heads=4, kv_heads=4)


@dataclass(frozen=True)
class PocketRecipe:
    """What the user may choose. The shares are of the minutes; what they leave is the draft model's."""

    minutes: float
    sampling_share: float = 0.45
    verifier_share: float = 0.42
    own_share: float = 0.04
    num_prompts: int = 24_000
    sampling_batch: int = 96
    max_new_tokens: int = 100
    vocabulary: int = 2048
    verifier: Shape = VERIFIER
    drafter: Shape = DRAFTER
    batch_size: int = 16
    learning_rate: float = 0.008
    temperatures: tuple[float, ...] = (1.0, 0.7)
    seed: int = 7

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("sampling_share", "verifier_share", "own_share")}
        if not self.minutes > 0:
            raise CactusError(f"minutes is {self.minutes}; it must be above 0")
        if not all(share > 0 for share in shares.values()) or sum(shares.values()) >= 1:
            raise CactusError(f"the shares must be above 0 and sum to less than 1: {shares}")
        if self.vocabulary < SMALLEST:
            raise CactusError(f"vocabulary is {self.vocabulary}; at least {SMALLEST} tokens")
        if not self.learning_rate > 0:
            raise CactusError(f"learning_rate is {self.learning_rate}; above 0")

    def seconds(self, share: float) -> float:
        return 60 * self.minutes * share

    @property
    def plan(self) -> TrainingPlan:
        """Of one step; the time decides about the number."""
        return TrainingPlan(1, self.batch_size, self.learning_rate, seed=self.seed)

    @property
    def drafter_share(self) -> float:
        return 1 - self.sampling_share - self.verifier_share - self.own_share


class PocketMaker:
    """One run of the recipe: `work` holds what the stages leave, `out` gets `verifier`, `drafter` and the record."""

    def __init__(self, recipe: PocketRecipe, work: Path, out: Path, tell: Listener) -> None:
        self.recipe, self.work, self.out, self.tell = recipe, work, out, tell
        self.log = StepLog(work / STEPS_FILE)
        self.facts: dict[str, object] = {}

    def make(self, large: Verifier) -> list[Acceptance]:
        """All stages; the measured acceptance, one entry a temperature."""
        begin = time.monotonic()
        pairs = self._texts(large)
        tokenizer = self._vocabulary(pairs)
        self._verifier(pairs, tokenizer)
        self._drafter(tokenizer)
        results = self._evaluate(tokenizer)
        self.facts["minutes_of_last_run"] = round((time.monotonic() - begin) / 60, 1)
        self._record(results)
        return results

    def _texts(self, large: Verifier) -> list[tuple[str, str]]:
        recipe, folder = self.recipe, self.work / "texts"
        seconds, begin, tokens = recipe.seconds(recipe.sampling_share), time.monotonic(), 0

        def on_file(count: int) -> None:
            nonlocal tokens
            tokens += count
            self.tell("write texts", time.monotonic() - begin, seconds, f"{tokens:,} tokens")

        batches = texts.plan(large.tokenizer, PROMPTS, recipe.num_prompts, recipe.sampling_batch, recipe.seed)
        if (self.work / "verifier.pt").exists():  # the texts are what training began with
            batches, seconds = list(texts.begun(folder, batches)), inf
        else:
            self.tell("write texts", 0, seconds, f"up to {len(batches)} batches of {recipe.sampling_batch} prompts")
        texts.grow(
            folder, large.model, large.tokenizer, batches, large.eos_ids, seconds, recipe.max_new_tokens, on_file
        )
        written = texts.read_all(folder)
        pairs = texts.usable(written)
        self.facts |= {"texts": len(written), "sampled_tokens": sum(text.tokens for text in written)}
        self.facts["usable_texts"] = len(pairs)
        return pairs

    def _vocabulary(self, pairs: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
        folder = self.work / "tokenizer"
        if not (folder / _TOKENIZER).exists():
            self.tell("vocabulary", 0, 1, f"{self.recipe.vocabulary} tokens of {len(pairs)} texts")
            everything = [text for pair in pairs for text in pair]
            with filling(folder, _TOKENIZER) as place:
                train_tokenizer(everything, self.recipe.vocabulary, CONTEXT).save_pretrained(place)
        return PreTrainedTokenizerFast.from_pretrained(folder)

    def _verifier(self, pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> None:
        recipe, checkpoints = self.recipe, Checkpoints(self.work / "verifier.pt")
        data = TextDataset(encode(tokenizer, pairs))

        def fresh(plan: TrainingPlan) -> Trainer[Writer]:
            writer = Writer(new_model(recipe.verifier, tokenizer, CONTEXT, recipe.seed))
            return Trainer(writer, data, plan, writer.tables)

        plan = replace(recipe.plan, weight_decay=0.05)
        trainer = started(plan, recipe.seconds(recipe.verifier_share), fresh, checkpoints)
        run_to_end(trainer, "verifier", checkpoints, self.log, self.tell)
        save_model(self.out / "verifier", trainer.student.model, tokenizer)
        self._note("verifier", trainer)

    def _drafter(self, tokenizer: PreTrainedTokenizerFast) -> None:
        recipe, checkpoints = self.recipe, Checkpoints(self.work / "drafter.pt")
        verifier = read_model(self.out / "verifier")
        folder = self.work / "own"
        rows = checkpoints.load()["rows"] if checkpoints.path.exists() else None
        self._sample_own(verifier, tokenizer, folder, rows)
        data = Dataset(corpus.whole_chunks(folder))

        def fresh(plan: TrainingPlan) -> Trainer[Drafter]:
            drafter = Drafter(new_model(recipe.drafter, tokenizer, CONTEXT, recipe.seed), verifier.lm_head.weight)
            return Trainer(drafter, data, plan, drafter.tables)

        trainer = started(recipe.plan, recipe.seconds(recipe.drafter_share), fresh, checkpoints)
        run_to_end(trainer, "drafter", checkpoints, self.log, self.tell)
        save_model(self.out / "drafter", trainer.student.model, tokenizer)
        self._note("drafter", trainer)

    def _sample_own(
        self, verifier: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, rows: int | None
    ) -> None:
        """rows: answers on which a training has begun; what is damaged of them is sampled again, no more."""
        recipe = self.recipe
        seconds, begin, tokens = recipe.seconds(recipe.own_share), time.monotonic(), 0

        def on_chunk(count: int) -> None:
            nonlocal tokens
            tokens += count
            self.tell("sample", time.monotonic() - begin, seconds, f"{tokens:,} tokens")

        batches = corpus.plan(
            tokenizer, recipe.num_prompts, recipe.sampling_batch, recipe.seed + 1, PROMPTS, open_conversations=False
        )
        ends, length = [tokenizer.eos_token_id], 2 * recipe.max_new_tokens
        if rows is not None:
            corpus.repair(folder, verifier, batches, ends, length, rows)
        else:
            corpus.grow(folder, verifier, batches, ends, seconds, length, on_chunk)

    def _evaluate(self, tokenizer: PreTrainedTokenizerBase) -> list[Acceptance]:
        verifier, drafter = read_model(self.out / "verifier"), read_model(self.out / "drafter")
        vocab_size, results = len(tokenizer), []
        for temperature in self.recipe.temperatures:
            self.tell("evaluate", len(results), len(self.recipe.temperatures))
            answers = held_out_answers(
                verifier, tokenizer, held_out_prompts(PROMPTS), temperature, eos_ids=[tokenizer.eos_token_id]
            )
            results.append(
                acceptance_by_position(
                    verifier, lambda: ModelDrafter(HFModel(drafter), vocab_size), vocab_size, answers, temperature
                )
            )
        return results

    def _note(self, name: str, trainer: Trainer) -> None:
        """What a training took, for the record."""
        parameters = sum(parameter.numel() for parameter in trainer.student.parameters)
        self.facts[name] = {
            "parameters": parameters,
            "tokens": trainer.data.num_tokens,
            "texts": len(trainer.data.rows),
            "plan": asdict(trainer.plan),
        }

    def _record(self, results: list[Acceptance]) -> None:
        record = {
            "recipe": asdict(self.recipe),
            **self.facts,
            "torch": torch.__version__,
            "acceptance": [asdict(result) for result in results],
        }
        write_whole(self.out / "training.json", json.dumps(record, indent=2) + "\n")


def encode(tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]]) -> list[TextRow]:
    """Prompt and text as one chat, ended by an EOS."""
    prompts = corpus.chat_ids(tokenizer, [prompt for prompt, _ in pairs])
    answers = tokenizer([text for _, text in pairs], add_special_tokens=False)["input_ids"]
    return [
        TextRow([*prompt, *answer, tokenizer.eos_token_id], len(prompt))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
