"""Whole characters only, stop strings across pieces."""

from __future__ import annotations

import random

import pytest
import tiny
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from cactus.models import HFCodec
from cactus.text import StopStrings, TextStream

SAMPLES = [
    "plain text", "naïve café", "🌵 and 👩‍🚀", "仙人掌は緑です", "a\ufffdb", "\ufffd\ufffd\ufffd\ufffd", "مرحبا",
    "tab\tnew\nline",
]  # fmt: skip


def codec() -> HFCodec:
    return HFCodec(tiny.tokenizer(), tiny.model())


def byte_fallback_decoder():
    """SentencePiece's way: one token per byte, and a leading space that the first token loses."""
    vocab = {"<unk>": 0, "▁a": 1, "▁": 2, "b": 3, **{f"<0x{byte:02X}>": byte + 4 for byte in range(256)}}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("text", SAMPLES)
def test_fault_18_split_characters_come_whole_and_the_pieces_add_up(text):
    decode = codec().decode
    tokens = tiny.tokenizer()(text)["input_ids"]
    stream = TextStream(decode)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == decode(tokens) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("text", SAMPLES)
def test_fault_18_with_byte_fallback(text):
    decode = byte_fallback_decoder().decode
    tokens = [1, 2, *(byte + 4 for byte in text.encode()), 3]
    stream = TextStream(decode)
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.flush() == decode(tokens) == f"a {text}b"
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_fault_18_random_byte_soup_adds_up():
    decode, chooser = codec().decode, random.Random(0)
    for _ in range(30):
        tokens = [chooser.randrange(300) for _ in range(200)]
        stream = TextStream(decode)
        assert "".join(map(stream.push, tokens)) + stream.flush() == decode(tokens)


def test_fault_28_work_per_token_does_not_grow():
    lengths = []

    def decode(tokens):
        lengths.append(len(tokens))
        return codec_decode(tokens)

    codec_decode = codec().decode
    stream = TextStream(decode)
    broken = tiny.tokenizer()("🌵")["input_ids"][0]
    for token in [5, 9, 30] * 200 + [broken] * 600:
        stream.push(token)
    assert max(lengths) < 100


def test_a_fork_goes_its_own_way():
    stream = TextStream(codec().decode)
    first, *rest = tiny.tokenizer()("🌵")["input_ids"]
    stream.push(first)
    aside = stream.fork()
    assert aside.push(5) != ""
    assert "".join(map(stream.push, rest)) == "🌵"


@pytest.mark.parametrize("sizes", [[1], [2], [3], [7], [1, 4], [5, 2]])
def test_fault_10_stop_strings_are_found_across_pieces(sizes):
    text, stops = "one two, three. END of it", ("END", ". E", "zzz")
    finder, shown, at = StopStrings(stops), "", 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        piece = text[at : at + size]
        at += size
        cut = finder.cut(piece)
        shown += piece if cut is None else cut
        if cut is not None:
            break
    assert shown == "one two, three. E"
