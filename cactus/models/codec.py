"""Text ↔ token ids with a tokenizer of the transformers library: chat templates, EOS ids, equal tokenizers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from cactus.errors import CactusError, PromptError
from cactus.interfaces import Prompt
from cactus.models.typed import TypedText
from cactus.settings import check_text

Message = dict[str, str]
ROLES = ("system", "user", "assistant")


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All ids that end a text, by the model's generation settings and the tokenizer."""
    settings: GenerationConfig | None = model.generation_config
    stated = settings.eos_token_id if settings is not None else None
    ids = stated if isinstance(stated, list) else [stated]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def check_same_tokens(
    draft: PreTrainedTokenizerBase,
    verifier: PreTrainedTokenizerBase,
    names: tuple[str, str] = ("the draft model", "the verifier"),
    known: int = sys.maxsize,
) -> None:
    """`CactusError` naming the first id that the two tokenizers map to different tokens, and what would be needed.

    names: of the two models, for the message. known: ids from here on are left out of it.
    """
    ours, theirs = ({i: token for token, i in t.get_vocab().items() if i < known} for t in (draft, verifier))
    different = [i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i)]
    if different:
        first = different[0]
        raise CactusError(
            f"the draft model's and the verifier's tokenizers differ: token {first} is "
            f"{_said(ours, first)} for {names[0]} and {_said(theirs, first)} for {names[1]}; {len(different):,} of "
            f"{len(ours.keys() | theirs.keys()):,} ids differ. Drafted tokens are judged as ids, so both need the same "
            "tokenizer: take a draft model of the verifier's own family, or none (prompt lookup). Translating between "
            "tokenizers is not done here"
        )


def _said(tokens: dict[int, str], token_id: int) -> str:
    return repr(tokens[token_id]) if token_id in tokens else "no token at all"


class HFCodec:
    """Implements `interfaces.TextCodec`. vocab_size: columns of the verifier that have a token behind them.

    template: what the chat template is given beside the messages, such as {"enable_thinking": False}; switches: what
    a word in a message, such as "/think", makes of that. Of several such words the last counts.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
        template: Mapping[str, Any] | None = None,
        switches: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = dict(template or {})
        self.switches = dict(switches or {})
        self._typed = TypedText(tokenizer)
        self.eos_ids = eos_ids(model, tokenizer)
        known = max(tokenizer.get_vocab().values()) + 1
        self.vocab_size = min(known, model.config.get_text_config(decoder=True).vocab_size)

    def encode_prompt(self, prompt: Prompt, system: str = "") -> list[int]:
        """Token ids of a prompt.

        Text and messages go through the chat template, or as they are where the tokenizer has none; control tokens that
        they spell stay text. Ids are only checked. `PromptError` for empty prompts, unknown roles and unknown ids.
        """
        if isinstance(prompt, str):
            if not prompt.strip():
                raise PromptError("the prompt is empty; write at least one word")
            check_text(prompt)
            return self._encode_messages([{"role": "user", "content": prompt}], system)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise PromptError(f"the prompt is {prompt!r:.60}; text, chat messages or token ids are allowed")
        items = list(prompt)
        if not items:
            raise PromptError("the prompt is empty; give at least one message or token id")
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return self._check_ids(items)  # type: ignore[arg-type]
        messages = [_check_message(item) for item in items]
        if not any(message["content"].strip() for message in messages):
            raise PromptError("the prompt is empty; write at least one word into a message")
        return self._encode_messages(messages, system)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text as it is, control tokens that it spells included; `PromptError` for an empty one."""
        return self._check_ids(list(self.tokenizer(text)["input_ids"]))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def describe(self, token: int) -> str:
        """Text of one token; the vocabulary's own name for special tokens and parts of characters."""
        text = self.decode([token])
        return text if text and "\ufffd" not in text else str(self.tokenizer.convert_ids_to_tokens(token))

    @property
    def has_template(self) -> bool:
        """Whether prompts are put into a chat template; without one they are sent as they are."""
        return bool(self.tokenizer.chat_template)

    def _encode_messages(self, messages: list[Message], system: str) -> list[int]:
        check_text(system)
        if system.strip():
            messages = [{"role": "system", "content": system}, *messages]
        if not self.has_template:
            return self._encode_plain("\n\n".join(message["content"] for message in messages))
        try:
            return self._render(messages)
        except TemplateError:
            return self._render_folded(messages)

    def _render_folded(self, messages: list[Message]) -> list[int]:
        try:
            return self._render(_fold_system(messages))
        except TemplateError as error:
            raise PromptError(f"the model's chat template refuses these messages: {error}") from error

    def _encode_plain(self, text: str) -> list[int]:
        if not self._typed.spells_control(text):
            return self.encode_text(text)
        return self._check_ids([*self.tokenizer("")["input_ids"], *self._typed.ids(text)])

    def _render(self, messages: list[Message]) -> list[int]:
        options = self._options(messages)

        def around(messages: list[Message]) -> str:
            return str(
                self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
            )

        if any(self._typed.spells_control(message["content"]) for message in messages):
            return self._check_ids(self._typed.rendered(messages, around))
        return self._check_ids(list(self.tokenizer(around(messages), add_special_tokens=False)["input_ids"]))

    def _options(self, messages: list[Message]) -> dict[str, Any]:
        """For the chat template. What the model itself wrote switches nothing."""
        words = [word for message in messages if message["role"] != "assistant" for word in message["content"].split()]
        switched = [self.switches[word] for word in words if word in self.switches]
        return self.template | dict(switched[-1] if switched else {})

    def _check_ids(self, ids: list[int]) -> list[int]:
        bad = next((i for i in ids if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise PromptError(f"token id {bad} is not in the vocabulary; 0 to {self.vocab_size - 1} are allowed")
        if not ids:
            raise PromptError("the prompt has no tokens; write at least one word")
        return ids


def _check_message(item: object) -> Message:
    if not isinstance(item, dict) or not isinstance(item.get("content"), str) or item.get("role") not in ROLES:
        raise PromptError(f"{item!r:.80} is not a chat message; give role ({', '.join(ROLES)}) and content, both text")
    return {"role": item["role"], "content": item["content"]}


def _fold_system(messages: list[Message]) -> list[Message]:
    """The system prompt at the head of the first user turn, for templates that refuse a system role."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    first = {"role": messages[1]["role"], "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]
