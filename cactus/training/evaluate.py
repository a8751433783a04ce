"""How often a draft model's tokens would be accepted, position by position, on held-out text.

The expected acceptance of one lossless draft step is sum_x min(p(x), q(x)), computed here
exactly over the verifier's whole vocabulary. Position 1 is measured at every token of the
text; for positions 2 and later the draft model goes on by its own draws from every
`stride`-th token, and the verifier scores what it drew. Knows nothing of training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from cactus.training.corpus import chat_ids
from cactus.training.sampler import draw, sample


@dataclass(frozen=True)
class Answer:
    """Held-out text: `ids` [length], of which the first `prompt_length` are the prompt."""

    ids: Tensor
    prompt_length: int


@dataclass(frozen=True)
class Acceptance:
    """Mean sum min(p, q); `by_position[0]` is the first draft position, `spread` its deviation over prompts."""

    temperature: float
    prompts: int
    tokens: int
    by_position: tuple[float, ...]
    spread: float


def held_out_answers(
    verifier: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    temperature: float,
    max_new_tokens: int = 96,
    eos_ids: Sequence[int] = (),
    seed: int = 12345,
) -> list[Answer]:
    """What the verifier answers, one answer a prompt, all in one batch."""
    chats = chat_ids(tokenizer, prompts)
    shortest, longest = min(map(len, chats)), max(map(len, chats))
    rest = [ids[shortest:] + [-1] * (longest - len(ids)) for ids in chats]
    samples = sample(
        verifier,
        torch.tensor([ids[:shortest] for ids in chats]),
        torch.full((len(chats),), temperature),
        longest - shortest + max_new_tokens,
        list(eos_ids),
        torch.Generator().manual_seed(seed),
        torch.tensor(rest, dtype=torch.long),
    )
    ends = (shortest + samples.lengths).tolist()
    return [
        Answer(row[: min(end, len(ids) + max_new_tokens)].long(), len(ids))
        for row, end, ids in zip(samples.ids, ends, chats, strict=True)
    ]


@torch.inference_mode()
def acceptance_by_position(
    draft_model: LlamaForCausalLM,
    token_ids: Tensor,  # int64 [k], what the draft model's logits stand for
    verifier: PreTrainedModel,
    answers: Sequence[Answer],
    temperature: float = 1.0,
    positions: int = 5,
    stride: int = 4,
    seed: int = 0,
) -> Acceptance:
    """Both models at `temperature` > 0, without truncation."""
    generator = torch.Generator().manual_seed(seed)
    per_prompt = [
        _overlaps(draft_model, token_ids, verifier, answer, temperature, positions, stride, generator)
        for answer in answers
    ]  # per prompt: a list over positions of overlaps
    means = [torch.cat(column).mean().item() for column in zip(*per_prompt, strict=True)]
    first = torch.stack([columns[0].mean() for columns in per_prompt])
    tokens = sum(len(columns[0]) for columns in per_prompt)
    return Acceptance(temperature, len(answers), tokens, tuple(means), first.std(correction=0).item())


def _overlaps(
    draft_model: LlamaForCausalLM,
    token_ids: Tensor,
    verifier: PreTrainedModel,
    answer: Answer,
    temperature: float,
    positions: int,
    stride: int,
    generator: torch.Generator,
) -> list[Tensor]:
    length = len(answer.ids)
    places = torch.arange(answer.prompt_length - 1, length - 1)  # each predicts an answer token
    cuts = places[::stride]
    branches = torch.empty(len(cuts), 0, dtype=torch.long)  # drafted so far, behind each cut
    draft_logits = []
    for position in range(positions):
        logits = _tree_logits(draft_model, answer.ids, cuts, branches) / temperature
        last = cuts if not position else length + (torch.arange(len(cuts)) + 1) * position - 1
        draft_logits.append(logits[places] if not position else logits[last])
        if position + 1 < positions:
            drawn = token_ids[draw(logits[last].clone(), generator)]
            branches = torch.cat([branches, drawn[:, None]], 1)
    scores = _tree_logits(verifier, answer.ids, cuts, branches) / temperature
    tree = length + torch.arange(branches.numel()).view(branches.shape)  # [cuts, positions - 1]
    rows = [places] + [tree[:, i] for i in range(positions - 1)]
    return [_overlap(p, scores[r], token_ids) for p, r in zip(draft_logits, rows, strict=True)]


def _overlap(draft_logits: Tensor, verifier_logits: Tensor, token_ids: Tensor) -> Tensor:
    """sum min(p, q) of logits [n, k] and [n, vocab] -> [n]; outside token_ids p is 0."""
    verifier_probs = verifier_logits.softmax(-1)[:, token_ids]
    return torch.minimum(draft_logits.softmax(-1), verifier_probs).sum(-1)


def _tree_logits(model: PreTrainedModel, ids: Tensor, cuts: Tensor, branches: Tensor) -> Tensor:
    """Float32 logits of ids [length] followed by branches [cuts, depth], in one pass.

    Branch b continues ids[: cuts[b] + 1]: its tokens see that prefix, themselves, and no other branch.
    """
    length, depth = len(ids), branches.shape[1]
    owner = torch.arange(len(cuts)).repeat_interleave(depth)  # of each branch token
    step = torch.arange(depth).repeat(len(cuts))
    where = torch.cat([torch.arange(length), cuts[owner] + 1 + step])  # position ids
    total = length + len(owner)
    visible = torch.ones(total, total, dtype=torch.bool).tril()
    visible[length:, :length] = torch.arange(length) <= cuts[owner, None]
    visible[length:, length:] &= owner[:, None] == owner
    everything = torch.cat([ids, branches.flatten()])[None]
    out = model(everything, attention_mask=visible[None, None], position_ids=where[None], use_cache=False)
    return out.logits[0].float()
