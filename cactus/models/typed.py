"""What people type stays text: an `<|im_end|>` in a message is ten characters, not the token that ends a turn.

Ordinary messages are rendered and tokenized as a whole, as models know them. Only where a message spells a control
token is the template rendered with marks in the messages' places, and their texts tokenized apart from it. Knows
tokenizers of the transformers library; nothing of models.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

Message = dict[str, str]
MARK = re.compile("\ue000(\\d+)\ue001")  # private characters, which no template writes


class TypedText:
    """Tokenizes text in which nothing is a control token."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._control = tuple(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._plain: Any = None

    def spells_control(self, text: str) -> bool:
        """Whether a control token of the tokenizer would be found in this text."""
        return any(token in text for token in self._control)

    def ids(self, text: str) -> list[int]:
        """Token ids of the text, none of them a control token."""
        if self._plain is None:  # a tokenizer of its own: the setting would reach other threads
            self._plain = copy.deepcopy(self._tokenizer.backend_tokenizer)
            self._plain.encode_special_tokens = True
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def rendered(self, messages: list[Message], render: Callable[[list[Message]], str]) -> list[int]:
        """Token ids of a template around messages that are text alone."""
        marked = [{**message, "content": f"\ue000{place}\ue001"} for place, message in enumerate(messages)]
        ids: list[int] = []
        for number, piece in enumerate(MARK.split(render(marked))):
            if number % 2:
                ids += self.ids(messages[int(piece)]["content"])
            elif piece:
                ids += self._tokenizer(piece, add_special_tokens=False)["input_ids"]
        return ids
