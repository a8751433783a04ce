"""The kinds of draft model a verifier can be given by the recipe: how each begins, learns, is stored and drafts.

Adding a kind is one class.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from torch import Tensor
from transformers import LlamaForCausalLM

from cactus.drafters import FeatureDrafter, ModelDrafter
from cactus.interfaces import Drafter
from cactus.models import HFModel, context_length, feature, shared
from cactus.training.feature import FeatureStudent
from cactus.training.train import SharedStudent, Student

StudentType = TypeVar("StudentType", bound=Student)


class DraftKind(Protocol, Generic[StudentType]):
    """`start_from`: the folder of an earlier one to improve; its vocabulary may differ."""

    def begin(self, verifier: LlamaForCausalLM, token_ids: Tensor, start_from: Path | None) -> StudentType: ...

    def save(self, folder: Path, student: StudentType, token_ids: Tensor) -> None: ...

    def drafters(self, folder: Path, verifier: LlamaForCausalLM) -> Callable[[], Drafter]:
        """Fresh drafters of what was saved."""


@dataclass(frozen=True)
class Layers:
    """A few layers between the verifier's embeddings and output head (`models.shared`)."""

    init_from: tuple[int, ...] = (0, -1)  # the verifier's layers it begins with

    def begin(self, verifier: LlamaForCausalLM, token_ids: Tensor, start_from: Path | None) -> SharedStudent:
        student = SharedStudent(shared.build(verifier, token_ids, len(self.init_from), self.init_from))
        if start_from is not None:
            earlier, _ = shared.load(start_from, verifier)
            student.load(shared.own_state(earlier))
        return student

    def save(self, folder: Path, student: SharedStudent, token_ids: Tensor) -> None:
        shared.save(folder, student.draft_model, token_ids)

    def drafters(self, folder: Path, verifier: LlamaForCausalLM) -> Callable[[], Drafter]:
        draft_model, token_ids = shared.load(folder, verifier)
        return lambda: ModelDrafter(HFModel(draft_model), verifier.config.vocab_size, token_ids)


@dataclass(frozen=True)
class Feature:
    """A feature head (`models.feature`), trained for `steps` steps ahead on a `share` of the positions of each."""

    steps: int = 3
    share: float = 0.5

    def begin(self, verifier: LlamaForCausalLM, token_ids: Tensor, start_from: Path | None) -> FeatureStudent:
        student = FeatureStudent(feature.build(verifier, token_ids), self.steps, self.share)
        if start_from is not None:
            earlier, _ = feature.load(start_from, verifier)
            student.load(feature.own_state(earlier))
        return student

    def save(self, folder: Path, student: FeatureStudent, token_ids: Tensor) -> None:
        feature.save(folder, student.head, token_ids)

    def drafters(self, folder: Path, verifier: LlamaForCausalLM) -> Callable[[], Drafter]:
        head, token_ids = feature.load(folder, verifier)
        length = context_length(verifier)
        return lambda: FeatureDrafter(feature.HFFeatureHead(head, length), verifier.config.vocab_size, token_ids)
