"""The sizes of the registry's hub models: counted from their configurations on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM

from cactus.pairs import PAIRS, hub_models

# Sizes in the authors' config.json: hidden, inner, layers, heads, key heads, head size, vocabulary, tied embeddings.
SIZES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": ("llama", 2048, 8192, 24, 32, 32, 64, 49152, True),
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", 896, 4864, 24, 14, 2, 64, 151936, True),
    "Qwen/Qwen2.5-1.5B-Instruct": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, False),
    "Qwen/Qwen3-0.6B": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-1.7B": ("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-4B": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "Qwen/Qwen3-8B": ("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
    "Qwen/Qwen3-14B": ("qwen3", 5120, 17408, 40, 40, 8, 128, 151936, False),
    "Qwen/Qwen3-32B": ("qwen3", 5120, 25600, 64, 64, 8, 128, 151936, False),
    "google/gemma-2-2b-it": ("gemma2", 2304, 9216, 26, 8, 4, 256, 256000, True),
    "google/gemma-2-9b-it": ("gemma2", 3584, 14336, 42, 16, 8, 256, 256000, True),
    "google/gemma-3-1b-it": ("gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144, True),
    "google/gemma-3-4b-it": ("gemma3_text", 2560, 10240, 34, 8, 4, 256, 262208, True),
    "google/gemma-3-12b-it": ("gemma3_text", 3840, 15360, 48, 16, 8, 256, 262208, True),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ("qwen2", 1536, 8960, 28, 12, 2, 128, 151936, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": ("qwen2", 3584, 18944, 28, 28, 4, 128, 152064, False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": ("qwen2", 5120, 13824, 48, 40, 8, 128, 152064, False),
}
NAMES = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings",
)  # fmt: skip
LISTED = {weights.repo_id: weights for weights in vars(hub_models).values() if hasattr(weights, "repo_id")}


def on_meta(sizes: tuple[Any, ...]) -> torch.nn.Module:
    with init_empty_weights(include_buffers=True):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**dict(zip(NAMES, sizes, strict=True))))


def test_every_listed_model_is_counted_here_and_used_by_a_pair():
    used = {weights.repo_id for spec in PAIRS.values() for weights in spec.hub_weights}
    assert used == LISTED.keys() == SIZES.keys()


@pytest.mark.parametrize("repo_id", SIZES)
def test_parameters_and_cache_follow_from_the_configuration(repo_id):
    model, weights = on_meta(SIZES[repo_id]), LISTED[repo_id]
    assert sum(parameter.numel() for parameter in model.parameters()) == weights.parameters
    _, _, _, layers, _, key_heads, head_size, _, _ = SIZES[repo_id]
    assert weights.cache_numbers == 2 * layers * key_heads * head_size
    projected = model.model.layers[0].self_attn.k_proj.out_features
    assert projected == key_heads * head_size


@pytest.mark.parametrize("repo_id", [repo_id for repo_id in SIZES if repo_id.startswith("Qwen/Qwen3")])
def test_what_qwen3_stores_beyond_its_parameters_is_a_second_copy_of_the_embeddings(repo_id):
    weights, sizes = LISTED[repo_id], SIZES[repo_id]
    assert weights.stored in (0, weights.parameters + sizes[1] * sizes[7])


def test_a_pairs_draft_model_is_the_smaller_one():
    for spec in PAIRS.values():
        if spec.drafter.hub is not None:
            assert spec.drafter.size_bytes * 3 <= spec.verifier.size_bytes, spec.name
