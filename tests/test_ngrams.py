"""Tables of what mostly follows: counting, files, and drafting by them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import tiny
import torch
from safetensors.torch import save_file
from test_drafters import lookup, propose

from cactus import PAIRS, SamplingParams, decode, make_rule, ngrams
from cactus.drafters import PromptLookup
from cactus.errors import CactusError

TEXT = [9, 1, 2, 3, 1, 2, 3, 1, 2, 4]
TABLE = {(1,): 2, (2,): 3, (1, 2): 3}


def test_what_followed_most_often_in_answers_is_kept():
    assert ngrams.most_frequent([(TEXT, 2)]) == TABLE
    counted = ngrams.most_frequent([(TEXT, 5)], least=2)
    assert counted == TABLE | {(3, 1): 2}  # behind 1, 2 came 3 and 4 equally often: the first
    assert ngrams.most_frequent([(TEXT, 9)]) == {}
    assert ngrams.most_frequent([([5, 6], 0)], least=1) == {(5,): 6}


def test_a_table_is_read_as_it_was_written(tmp_path):
    for table in (TABLE, {}):
        ngrams.save(table, tmp_path)
        assert ngrams.load(tmp_path, 4) == table


def grams(one, two):
    return {"1-grams": torch.tensor(one), "2-grams": torch.tensor(two)}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"1-grams": torch.ones(1, 2, dtype=torch.int32)}, "has 1-grams; a table for each size"),
        (grams([[1, 2]], [[1, 2]]), "2-grams is no table of whole numbers with 3 columns"),
        (grams([[1.0, 2.0]], [[1, 2, 3]]), "1-grams is no table"),
        (grams([[1, 2]], [[1, 2, 20]]), "tokens up to 20; the vocabulary has 20"),
        (grams([[1, -2]], [[1, 2, 3]]), "the vocabulary has 20"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, tables, message):
    save_file(tables, tmp_path / ngrams.FILE)
    with pytest.raises(CactusError, match=message):
        ngrams.load(tmp_path, 20)


def test_a_damaged_or_missing_file_is_named(tmp_path):
    for content in (None, b"{}", b"\x10" * 40):
        if content is not None:
            (tmp_path / ngrams.FILE).write_bytes(content)
        with pytest.raises(CactusError, match=rf"{ngrams.FILE} cannot be read"):
            ngrams.load(tmp_path, 20)


def test_the_longer_n_gram_decides_and_of_equal_ones_the_text():
    usual = {(1,): 2, (2,): 3, (1, 2): 4, (4,): 1}
    assert propose(lookup(usual=usual), [7, 1], count=5).tokens.tolist() == [2, 4, 1, 2, 4]
    assert propose(lookup(usual=usual), [1, 2, 9, 1], count=3).tokens.tolist() == [2, 9, 1]  # (1, 2) of the text
    assert propose(lookup(usual=usual), [2, 9, 1, 2], count=1).tokens.tolist() == [4]  # (1, 2) before (2,) of the text
    assert propose(lookup(usual=usual, max_ngram=1), [2, 9, 2], count=1).tokens.tolist() == [9]


def test_the_shipped_table_is_whole_and_fits_its_verifier():
    source = PAIRS["smollm2-135m-lookup"].drafter
    source.fetch()
    table = ngrams.load(source.folder, 49_152)
    assert {len(ngram) for ngram in table} == set(ngrams.SIZES) and source.size_bytes < 1e6


def test_a_table_leaves_a_greedy_text_as_it_is():
    alone = tiny.pair(draft="lookup")
    text = texts(alone, None, 0)
    usual = {(token,): following for token, following in pairwise(text)} | {(7,): 8}
    helped = replace(alone, drafter=lambda: PromptLookup(300, torch.device("cpu"), usual=usual))
    for rule, m in (("sps", 3), ("block", 5), ("sps", "auto")):
        assert texts(helped, make_rule(rule), m) == text


def texts(pair, rule, m):
    run = decode(pair, [5, 9, 30], rule, m, SamplingParams(temperature=0.0), 40, 0)
    list(run)
    assert rule is None or sum(round_.accepted_length for round_ in run.rounds) > 5
    return [token.id for token in run.trace.tokens]
