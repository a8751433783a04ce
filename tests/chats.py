"""Chat templates of the kinds that the listed families have, and tokenizers with their special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import tiny
from transformers import AddedToken, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Chat:
    """`ends`: the tokens that end a text, by the model's generation settings; `shown`: added, but not special."""

    template: str
    bos: str | None
    ends: tuple[str, ...]
    special: tuple[str, ...]
    shown: tuple[str, ...] = ()


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
)
CHATS = {
    "llama": Chat(
        "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
        "{{ message.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        bos="<|begin_of_text|>",
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        special=("<|start_header_id|>", "<|end_header_id|>"),
    ),
    "smollm2": Chat(
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n{% endif %}"
        + CHATML
        + "{% endif %}",
        bos=None,
        ends=("<|im_end|>",),
        special=("<|im_start|>",),
    ),
    "qwen2": Chat(CHATML + "{% endif %}", bos=None, ends=("<|im_end|>", "<|endoftext|>"), special=("<|im_start|>",)),
    "qwen3": Chat(
        CHATML
        + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
        + "{% endif %}",
        bos=None,
        ends=("<|im_end|>", "<|endoftext|>"),
        special=("<|im_start|>",),
        shown=("<think>", "</think>"),
    ),
    "gemma2": Chat(
        "{{ bos_token }}"
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n{{ message.content | trim }}"
        "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        bos="<bos>",
        ends=("<eos>", "<end_of_turn>"),
        special=("<start_of_turn>",),
    ),
    "deepseek": Chat(
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}<｜User｜>{{ message.content }}"
        "{% elif message.role == 'assistant' %}<｜Assistant｜>{{ message.content.split('</think>')[-1] }}"
        "<｜end▁of▁sentence｜>{% else %}{{ message.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}",
        bos="<｜begin▁of▁sentence｜>",
        ends=("<｜end▁of▁sentence｜>",),
        special=("<｜User｜>", "<｜Assistant｜>"),
        shown=("<think>", "</think>"),
    ),
}
CHATS |= {"gemma3": CHATS["gemma2"], "gemma3 with images": CHATS["gemma2"]}
MODEL_OF = {"deepseek": "qwen2"}  # whose architecture the distilled ones have
COLUMNS = 320  # of the models: more than there are tokens


@cache
def chat_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained here, with the family's special tokens, template and order of ids."""
    chat = CHATS[name]
    names = {"bos_token": chat.bos} if chat.bos else {}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tiny.trained(("<|pad|>",), 290), pad_token="<|pad|>", eos_token=chat.ends[0], **names
    )
    made.add_special_tokens({"additional_special_tokens": [*chat.ends, *chat.special]})
    made.add_tokens([AddedToken(token, normalized=False, special=False) for token in chat.shown])
    made.chat_template = chat.template
    return made


def end_ids(name: str) -> list[int]:
    return chat_tokenizer(name).convert_tokens_to_ids(list(CHATS[name].ends))
