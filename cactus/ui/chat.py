"""The turns of a conversation, read from the trace that is shown, and the request for the next one.

A trace holds the messages it was asked with, so what is shown is all there is to remember: a trace that was loaded can
be replied to like a run just made. Knows requests and traces; no component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cactus.errors import CactusError
from cactus.interfaces import Prompt
from cactus.request import RunRequest
from cactus.trace import Trace

Message = dict[str, str]
NOTHING_TO_REPLY_TO = "There is no answer to reply to yet: run something first."
NO_TURNS = "This text goes on from a raw prompt: it has no turns to reply to. Run starts a conversation."
REPLY_AS_CHAT = "A reply is a turn of a conversation: choose Chat beside the prompt."


def shown_turns(prompt: Prompt, raw: bool) -> list[tuple[str, str]]:
    """Role and text of what stands before an answer on the page: nothing where a single turn was asked for."""
    if raw:
        return [("raw prompt", str(prompt))]
    return [(message["role"], message["content"]) for message in _messages(prompt) if _is_turn(message)]


def history(trace: Trace | None, wanted: RunRequest | None) -> list[Message]:
    """The turns so far: those of the trace and its answer, or, where a reply failed, those it had replied to."""
    if trace is not None:
        asked = _conversation(trace.prompt, trace.raw)
        return [*asked, {"role": "assistant", "content": trace.text}]
    if wanted is not None and _messages(wanted.prompt):
        return _messages(wanted.prompt)[:-1]
    raise CactusError(NOTHING_TO_REPLY_TO)


def reply(wanted: RunRequest, before: Sequence[Message]) -> RunRequest:
    """What is wanted as the next turn; the system prompt now set holds, or else the conversation's own."""
    if wanted.raw:
        raise CactusError(REPLY_AS_CHAT)
    head = [message for message in before if message.get("role") == "system"]
    turns = [message for message in before if message.get("role") != "system"]
    if wanted.system.strip():
        head = [{"role": "system", "content": wanted.system}]
    user = {"role": "user", "content": str(wanted.prompt)}
    return replace(wanted, prompt=(*head, *turns, user), system="")


def _conversation(prompt: Prompt, raw: bool) -> list[Message]:
    if isinstance(prompt, str) and not raw:
        return [{"role": "user", "content": prompt}]
    if messages := _messages(prompt):
        return messages
    raise CactusError(NO_TURNS)


def _messages(prompt: Prompt) -> list[Message]:
    """Those of a prompt made of messages; none of a text or of token ids."""
    return [] if isinstance(prompt, str) else [dict(item) for item in prompt if isinstance(item, dict)]


def _is_turn(message: Message) -> bool:
    return isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
