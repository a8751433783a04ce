"""What the public methods of a rule are given, checked once for all rules: shapes, types, tokens in the vocabulary.

The values of rows are left alone: the loop calls these methods every round and looks at the numbers behind its verdict
(`evidence`), where it can name the model's logits as the cause. `divergence.output_probs` looks at them itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cactus.acceptance.rule import Rule

R = TypeVar("R", bound=type[Rule])


def checked(rule: R) -> R:
    """The class itself, its public methods with their arguments checked. `ValueError` names the bad one."""
    for name, check in (("accept_probs", _block), ("recovery_probs", _step), ("output_probs", _rows)):
        setattr(rule, name, _behind(check, getattr(rule, name)))
    return rule


def _behind(check: Callable[..., object], method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def checking(self: Rule, draft_probs: Tensor, verifier_probs: Tensor, *tokens: Any, **named: Any) -> Tensor:
        check(draft_probs, verifier_probs, *tokens, *named.values())
        return method(self, draft_probs, verifier_probs, *tokens, **named)

    return checking


def _block(draft_probs: object, verifier_probs: object, draft_tokens: object) -> None:
    """[m, vocab], [m, vocab], [m]."""
    rows = _rows(draft_probs, verifier_probs, "[m, vocab]")
    if not isinstance(draft_tokens, Tensor) or draft_tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"draft_tokens must be a tensor of whole numbers, got {_kind(draft_tokens)}")
    if draft_tokens.shape != rows.shape[:1]:
        raise ValueError(f"draft_tokens must be [m] = [{rows.shape[0]}], got {list(draft_tokens.shape)}")
    if draft_tokens.device.type == "cpu":
        for token in draft_tokens.tolist():
            _in_vocabulary(token, rows.shape[-1])


def _step(draft_probs: object, verifier_probs: object, draft_token: object) -> None:
    """[vocab], [vocab], a token."""
    rows = _rows(draft_probs, verifier_probs, "[vocab]")
    if isinstance(draft_token, Tensor):
        if draft_token.numel() != 1 or draft_token.is_floating_point():
            raise ValueError(f"draft_token must be one token, got {_kind(draft_token)}")
        draft_token = int(draft_token) if draft_token.device.type == "cpu" else 0
    if isinstance(draft_token, bool) or not isinstance(draft_token, int):
        raise ValueError(f"draft_token must be a whole number, got {_kind(draft_token)}")
    _in_vocabulary(draft_token, rows.shape[-1])


def _rows(draft_probs: object, verifier_probs: object, shape: str = "[..., vocab]") -> Tensor:
    for name, probs in (("draft_probs", draft_probs), ("verifier_probs", verifier_probs)):
        if not isinstance(probs, Tensor) or not probs.is_floating_point():
            raise ValueError(f"{name} must be a tensor of probabilities, got {_kind(probs)}")
        fits = probs.dim() >= 1 if "..." in shape else probs.dim() == shape.count(",") + 1
        if not fits or not probs.shape[-1]:
            raise ValueError(f"{name} must be {shape}, got {list(probs.shape)}")
    if (draft_probs.shape, draft_probs.dtype) != (verifier_probs.shape, verifier_probs.dtype):  # type: ignore[attr-defined]
        raise ValueError(
            f"draft_probs and verifier_probs must be alike, got {_kind(draft_probs)}, {_kind(verifier_probs)}"
        )
    return draft_probs  # type: ignore[return-value]


def _in_vocabulary(token: int, vocab: int) -> None:
    if not 0 <= token < vocab:
        raise ValueError(f"drafted token is {token}; 0 to {vocab - 1} are allowed")


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{value!r:.40}"
