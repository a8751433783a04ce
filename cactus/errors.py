"""Errors whose message is meant for the person who caused or can cure them.

The page, the API and the command line show the message of any `ValueError` as it is; whatever else is
raised is a fault of ours and keeps its traceback.
"""


class CactusError(ValueError):
    """Something asked for cannot be done; the message names the value and what is allowed instead."""


class UnavailableError(CactusError):
    """Weights or files cannot be had: no network, misspelt id, damaged download, full disk, no memory."""


class PromptError(CactusError):
    """The prompt is empty, too long for the context, or contains ids the tokenizer does not have."""


class RewindError(CactusError):
    """A cache no longer holds what it would need to go back so far."""
