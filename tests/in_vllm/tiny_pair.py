"""A random verifier and a draft model near it, as folders that a server can load; nothing is downloaded.

Runs in either environment: it needs transformers alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }} {{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant {% endif %}"
)
SPECIAL = ["<|pad|>", "<|start|>", "<|end|>"]
CONTEXT = 256
# vLLM's attention on a CPU takes heads of 32 and more. Wide weights, so that the random distributions have peaks.
CONFIG = LlamaConfig(
    vocab_size=260, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, max_position_embeddings=CONTEXT, initializer_range=0.25,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip


def write_pair(folder: Path, noise: float = 0.25) -> tuple[Path, Path]:
    """Folders of the verifier and of the draft model, which is the verifier with its weights disturbed by `noise`."""
    torch.manual_seed(0)
    verifier = LlamaForCausalLM(CONFIG).eval()
    draft = LlamaForCausalLM(CONFIG).eval()
    draft.load_state_dict(verifier.state_dict())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * parameter.std().nan_to_num() * torch.randn_like(parameter))
    for name, model in (("verifier", verifier), ("draft", draft)):
        model.save_pretrained(folder / name)
        _tokenizer().save_pretrained(folder / name)
    return folder / "verifier", folder / "draft"


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and three special ones."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_alone = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    bytes_alone.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=bytes_alone, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    return fast
