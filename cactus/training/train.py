"""Training of a student on a verifier's distributions: steps, learning rates, checkpoints.

What is trained is a `Student`; the first is a shared draft model, of which only the layers and the norm learn.
Cross entropy first, then a growing share of the distance 1 - sum min(p, q), whose
complement is the acceptance rate. Checkpoints are atomic, and a resumed run ends where
an uninterrupted one would. Knows nothing of how the text was sampled.
"""

import io
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.models.shared import own_state
from cactus.training.data import TrainingBatch
from cactus.training.loss import Distilled, distil

_STATE = ("plan", "step", "rows", "weights", "optimizers")


@dataclass(frozen=True)
class TrainingPlan:
    """What a run does; stored in its checkpoints."""

    steps: int
    batch_size: int = 16
    learning_rate: float = 2e-3
    warmup: float = 0.03  # share of the steps
    final_rate: float = 0.01  # of learning_rate
    tv_from: float = 0.5  # progress at which the distance starts to count
    tv_share: float = 0.9  # its share at the end
    weight_decay: float = 0.01
    optimizer: str = "muon"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1:
            raise ValueError(f"steps and batch_size must be positive: {self}")
        if self.optimizer not in ("adamw", "muon"):
            raise ValueError(f"optimizer must be adamw or muon, not {self.optimizer!r}")

    def rate_at(self, step: int) -> float:
        """Factor on the learning rate: linear warm-up, then a cosine to final_rate."""
        rise = (step + 1) / max(1.0, self.warmup * self.steps)
        fall = 0.5 + 0.5 * cos(pi * step / self.steps)
        return min(rise, self.final_rate + (1 - self.final_rate) * fall)

    def tv_at(self, step: int) -> float:
        progress = (step / self.steps - self.tv_from) / max(1e-9, 1 - self.tv_from)
        return self.tv_share * min(1.0, max(0.0, 2 * progress))


class Progress(NamedTuple):
    step: int  # steps done
    loss: float
    acceptance: float  # mean sum min(p, q) of the batch, on the trimmed vocabulary
    rate: float
    tokens: int


class Student(Protocol):
    """What learns. `own_state`: what of it does, to be stored; `parameters`: the same, as leaves of the gradient."""

    @property
    def parameters(self) -> list[Tensor]: ...

    def own_state(self) -> dict[str, Tensor]: ...

    def load(self, state: dict[str, Tensor]) -> None: ...

    def loss(self, batch: Any, tv_share: float) -> Distilled:
        """Differentiable, with the batch's acceptance beside it."""


class SharedStudent:
    """A shared draft model (`models.shared`); embeddings and head stay the verifier's."""

    def __init__(self, draft_model: LlamaForCausalLM) -> None:
        self.draft_model = draft_model
        names = own_state(draft_model)
        draft_model.requires_grad_(False)
        self.parameters = [p.requires_grad_(True) for n, p in draft_model.named_parameters() if n in names]
        self.head = draft_model.lm_head.weight.detach().bfloat16()

    def own_state(self) -> dict[str, Tensor]:
        return own_state(self.draft_model)

    def load(self, state: dict[str, Tensor]) -> None:
        self.draft_model.load_state_dict(state, strict=False)

    def loss(self, batch: TrainingBatch, tv_share: float) -> Distilled:
        with torch.autocast("cpu", torch.bfloat16):
            out = self.draft_model.model(batch.ids, use_cache=False)
        hidden = out.last_hidden_state.flatten(0, 1)[batch.positions]  # [positions, hidden]
        return distil(hidden.float(), batch.verifier_hidden, self.head, tv_share)


class Data(Protocol):
    """What is learnt from; `rows` are its texts."""

    @property
    def rows(self) -> Sequence[Any]: ...

    def batches(self, batch_size: int, seed: int, start: int = 0) -> Iterator[Any]: ...


StudentType = TypeVar("StudentType", bound=Student)


class Trainer(Generic[StudentType]):
    """A student in float32, its optimizers, and where it stands."""

    def __init__(self, student: StudentType, data: Data, plan: TrainingPlan, tables: Sequence[Tensor] = ()) -> None:
        """`tables`: parameters of which single rows are looked up (embeddings); these are no matrices to Muon."""
        self.student, self.data, self.plan, self.step = student, data, plan, 0
        self.optimizers = _optimizers(student.parameters, plan, {id(table) for table in tables})

    def run(self, until: int, on_step: Callable[[Progress], Any] = lambda progress: None) -> None:
        """Steps up to number `until`; stop early by raising from `on_step`."""
        batches = self.data.batches(self.plan.batch_size, self.plan.seed, self.step)
        while self.step < until:
            on_step(self._step(next(batches)))

    def _step(self, batch: TrainingBatch) -> Progress:
        rate = self.plan.rate_at(self.step)
        result = self.student.loss(batch, self.plan.tv_at(self.step))
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters, 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.plan.learning_rate * rate
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return Progress(self.step, float(result.loss.detach()), result.acceptance, rate, len(batch.positions))

    def state(self) -> dict[str, Any]:
        """What `_STATE` names."""
        return {
            "plan": asdict(self.plan),
            "step": self.step,
            "rows": len(self.data.rows),
            "weights": self.student.own_state(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """`CactusError` if it is the state of another student, or one that learnt from other texts."""
        if state["rows"] != len(self.data.rows):
            raise CactusError(f"the checkpoint was trained on {state['rows']} texts; {len(self.data.rows)} are here")
        try:
            self.step = state["step"]
            self.student.load(state["weights"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CactusError(
                f"the checkpoint is of a run with other settings ({str(error).splitlines()[0]}); give the same again"
            ) from error


def _optimizers(parameters: list[Tensor], plan: TrainingPlan, tables: set[int]) -> list[torch.optim.Optimizer]:
    """AdamW for all, or Muon for the matrices and AdamW for the rest."""
    matrices = [p for p in parameters if p.ndim == 2 and id(p) not in tables and plan.optimizer == "muon"]
    chosen = {id(p) for p in matrices}
    others = [p for p in parameters if id(p) not in chosen]
    rate, decay = plan.learning_rate, plan.weight_decay
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=decay)
    ]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    return optimizers


class Checkpoints:
    """One checkpoint file, replaced atomically every `seconds`."""

    def __init__(self, path: Path, seconds: float = 120.0) -> None:
        self.path, self.seconds, self.last = path, seconds, time.monotonic()

    def maybe_save(self, trainer: Trainer[Any]) -> None:
        if time.monotonic() - self.last >= self.seconds:
            self.save(trainer)

    def save(self, trainer: Trainer[Any]) -> None:
        """`UnavailableError` for a full disk; the earlier checkpoint is still there then."""
        packed = io.BytesIO()  # torch tells of a full disk in ways of its own
        torch.save(trainer.state(), packed)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, packed.getvalue())
        self.last = time.monotonic()

    def load(self) -> dict[str, Any]:
        """`CactusError` if there is none or it is damaged."""
        try:
            with zipfile.ZipFile(self.path) as archive:  # which torch.load reads without a look at its checksums
                if bad := archive.testzip():
                    raise ValueError(f"the checksum of {bad} differs")
            state = torch.load(self.path, weights_only=True)
            if not isinstance(state, dict) or state.keys() != set(_STATE):
                raise ValueError("it is no checkpoint of a training")
            return state
        except Exception as error:  # unpickling fails in many ways
            raise CactusError(
                f"cannot resume from {self.path}: {str(error).splitlines()[0]}; remove it, and training begins again"
            ) from error
