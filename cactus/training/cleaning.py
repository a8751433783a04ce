"""Sampled text made fit to learn from: whole English sentences, no loops, no markup.

A small model's samples break off, go round in circles and drift into lists. What is good of a
text is its beginning: it is kept up to the last finished sentence before the trouble starts.
Knows nothing of models.
"""

import re
from collections.abc import Sequence

_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "\u00a0": " "})
_ODD = re.compile(r"[^A-Za-z0-9 .,;:!?'\"()-]")
_LIST = re.compile(r"(?m)^\s*(?:[-*•#>]|\d+[.)]|[A-Za-z]\))\s")
_ASSISTANT = re.compile(r"(?i)\b(?:as an ai|language model|i'm sorry, but|i cannot|user|prompt|sentences?)\b")
_END = re.compile(r"(?<=[.!?])(?<!\bMr\.)(?<!\bDr\.)(?<!\bMrs\.)[\"')]*(?= |$)")
_WORD = re.compile(r"[a-z']+")
MIN_SENTENCES, MIN_WORDS = 2, 12
MIN_NEW_TRIPLES = 0.8  # share of three-word sequences that are not repetitions
MAX_SENTENCE_WORDS = 40


def clean(text: str) -> str | None:
    """The usable beginning of `text` on one line, or None if there is too little of it."""
    text = text.translate(_PLAIN)
    if _LIST.search(text):
        return None
    text = " ".join(text.split())
    if _ODD.search(text) or _ASSISTANT.search(text) or not (text[:1].isupper() or text[:1] == '"'):
        return None
    sentences = _before_loops(_sentences(text))
    while len(sentences) >= MIN_SENTENCES:
        kept = " ".join(sentences)
        if kept.count('"') % 2 == 0 and _new_triples(kept) >= MIN_NEW_TRIPLES:
            return kept if len(_words(kept)) >= MIN_WORDS else None
        sentences.pop()
    return None


def _sentences(text: str) -> list[str]:
    """Finished sentences only; what follows the last full stop is left out."""
    ends = [match.end() for match in _END.finditer(text)]
    return [text[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]


def _before_loops(sentences: Sequence[str]) -> list[str]:
    """Up to the first sentence that has been said before, or goes round in itself."""
    kept: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for sentence in sentences:
        words = _words(sentence)
        if tuple(words) in seen or len(words) > MAX_SENTENCE_WORDS or _stutters(words):
            break
        seen.add(tuple(words))
        kept.append(sentence)
    return kept


def _stutters(words: Sequence[str]) -> bool:
    """A word or a pair of words twice in a row ("special special", "very big, very big")."""
    return any(
        words[i : i + size] == words[i + size : i + 2 * size]
        for size in (1, 2)
        for i in range(len(words) - 2 * size + 1)
    )


def _new_triples(text: str) -> float:
    words = _words(text)
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(triples)) / max(1, len(triples))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
