"""How often a draft model's tokens would be accepted, position by position, on held-out text.

The expected acceptance of one lossless draft step is sum_x min(p(x), q(x)), computed here
exactly over the verifier's whole vocabulary, for the drafter that decoding would use. Position 1
is measured at every token of the text; for positions 2 and later the drafter goes on by its own
draws from every `stride`-th token, and the verifier scores what it drew. Knows nothing of training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from cactus.interfaces import DraftContext, Drafter, Proposal
from cactus.models import HFModel
from cactus.sampling import SamplingParams, pick, probs_from_logits
from cactus.training.corpus import chat_ids
from cactus.training.sampler import sample


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
    verifier: PreTrainedModel,
    new_drafter: Callable[[], Drafter],
    vocab_size: int,
    answers: Sequence[Answer],
    temperature: float = 1.0,
    positions: int = 5,
    stride: int = 4,
    seed: int = 0,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> Acceptance:
    """Both models at `temperature` > 0, without truncation, over the first `vocab_size` tokens.

    A position where nothing is drafted counts 0 if it is the first, and not at all if it is a later one. `tell` hears
    how many answers of how many are done.
    """
    generator = torch.Generator().manual_seed(seed)
    sampling = SamplingParams(temperature=temperature)
    per_prompt: list[list[Tensor]] = []  # per prompt: a list over positions of overlaps
    for answer in answers:
        proposals = _proposals(verifier, new_drafter(), answer, sampling, positions, stride, generator)
        per_prompt.append(_overlaps(verifier, vocab_size, answer, proposals, sampling, positions, stride))
        tell(len(per_prompt), len(answers))
    means = [torch.cat(column).mean().item() for column in zip(*per_prompt, strict=True)]
    first = torch.stack([columns[0].mean() for columns in per_prompt])
    tokens = sum(len(columns[0]) for columns in per_prompt)
    return Acceptance(temperature, len(answers), tokens, tuple(means), first.std(correction=0).item())


def _overlaps(
    verifier: PreTrainedModel,
    vocab_size: int,
    answer: Answer,
    proposals: list[Proposal],
    sampling: SamplingParams,
    positions: int,
    stride: int,
) -> list[Tensor]:
    """sum min(p, q) by position, each [places]."""
    length = len(answer.ids)
    cuts = torch.arange(answer.prompt_length - 1, length - 1)[::stride]
    deep = proposals[::stride]
    branches = torch.zeros(len(cuts), positions - 1, dtype=torch.long)  # drafted behind each cut, zeros behind the end
    for row, proposal in zip(branches, deep, strict=True):
        drawn = proposal.tokens[: positions - 1]
        row[: len(drawn)] = drawn
    logits = _tree_logits(verifier, answer.ids, cuts, branches)[:, :vocab_size]
    overlaps = [
        _overlap([proposal.probs for proposal in proposals], logits[answer.prompt_length - 1 : length - 1], 0, sampling)
    ]
    tree = logits[length:].unflatten(0, branches.shape)  # [cuts, positions - 1, vocab]
    for position in range(1, positions):
        there = [i for i, proposal in enumerate(deep) if len(proposal.tokens) > position]
        overlaps.append(_overlap([deep[i].probs for i in there], tree[there, position - 1], position, sampling))
    return overlaps


def _proposals(
    verifier: PreTrainedModel,
    drafter: Drafter,
    answer: Answer,
    sampling: SamplingParams,
    positions: int,
    stride: int,
    generator: torch.Generator,
) -> list[Proposal]:
    """What the drafter proposes at every token of the answer: `positions` tokens at every `stride`-th, else one."""
    ids, hidden = answer.ids.tolist(), None
    if drafter.wants_hidden:
        hidden = HFModel(verifier).feed(ids, want_hidden=True).hidden

    def choose(logits: Tensor, token_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        probs = probs_from_logits(logits, sampling)
        return pick(probs, generator), probs

    read = answer.prompt_length - 1  # hidden states passed on
    drafter.prefill(ids[:read], None if hidden is None else hidden[:read])
    proposals = []
    for number, place in enumerate(range(answer.prompt_length - 1, len(ids) - 1)):
        news = None if hidden is None else hidden[read:place]
        count = 1 if number % stride else positions
        proposals.append(drafter.propose(DraftContext(ids[: place + 1], count, choose, hidden=news)))
        drafter.rewind(place + 1)
        read = place
    return proposals


def _overlap(draft_probs: list[Tensor], logits: Tensor, position: int, sampling: SamplingParams) -> Tensor:
    """sum min(p, q) at one draft position, of draft_probs n x [m, vocab] and logits [n, vocab] -> [n]."""
    if not len(logits):
        return logits.new_zeros(0)
    verifier_probs = probs_from_logits(logits, sampling, None)
    drafted = [
        rows[position] if len(rows) > position else torch.zeros_like(q)
        for rows, q in zip(draft_probs, verifier_probs, strict=True)
    ]
    return torch.minimum(torch.stack(drafted), verifier_probs).sum(-1)


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
