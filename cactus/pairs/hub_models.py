"""The models of the hub that the registry's pairs are made of, as their authors publish them.

`parameters` follow from each model's configuration (the tests count them on the meta device), sizes from them: all of
these checkpoints are bfloat16. `stored` says what a checkpoint holds beyond them: Qwen3's two smallest repeat their
embeddings as an output head, Gemma 3 from 4B on brings an image encoder.
"""

from __future__ import annotations

from cactus.weights import HubWeights

APACHE = "Apache-2.0"
GEMMA = "Gemma"
MIT = "MIT"


def _cache(layers: int, key_heads: int, head_size: int) -> int:
    """Keys and values of one token."""
    return 2 * layers * key_heads * head_size


SMOLLM2_135M = HubWeights("HuggingFaceTB/SmolLM2-135M-Instruct", APACHE, 134_515_008, _cache(30, 3, 64))
SMOLLM2_1_7B = HubWeights("HuggingFaceTB/SmolLM2-1.7B-Instruct", APACHE, 1_711_376_384, _cache(24, 32, 64))

QWEN25_0_5B = HubWeights("Qwen/Qwen2.5-0.5B-Instruct", APACHE, 494_032_768, _cache(24, 2, 64))
QWEN25_1_5B = HubWeights("Qwen/Qwen2.5-1.5B-Instruct", APACHE, 1_543_714_304, _cache(28, 2, 128))
QWEN25_7B = HubWeights("Qwen/Qwen2.5-7B-Instruct", APACHE, 7_615_616_512, _cache(28, 4, 128))

QWEN3_0_6B = HubWeights("Qwen/Qwen3-0.6B", APACHE, 596_049_920, _cache(28, 8, 128), stored=751_632_384)
QWEN3_1_7B = HubWeights("Qwen/Qwen3-1.7B", APACHE, 1_720_574_976, _cache(28, 8, 128), stored=2_031_739_904)
QWEN3_4B = HubWeights("Qwen/Qwen3-4B", APACHE, 4_022_468_096, _cache(36, 8, 128))
QWEN3_8B = HubWeights("Qwen/Qwen3-8B", APACHE, 8_190_735_360, _cache(36, 8, 128))
QWEN3_14B = HubWeights("Qwen/Qwen3-14B", APACHE, 14_768_307_200, _cache(40, 8, 128))
QWEN3_32B = HubWeights("Qwen/Qwen3-32B", APACHE, 32_762_123_264, _cache(64, 8, 128))

GEMMA2_2B = HubWeights("google/gemma-2-2b-it", GEMMA, 2_614_341_888, _cache(26, 4, 256), gated=True)
GEMMA2_9B = HubWeights("google/gemma-2-9b-it", GEMMA, 9_241_705_984, _cache(42, 8, 256), gated=True)

GEMMA3_1B = HubWeights("google/gemma-3-1b-it", GEMMA, 999_885_952, _cache(26, 1, 256), gated=True)
GEMMA3_4B = HubWeights(
    "google/gemma-3-4b-it", GEMMA, 3_880_263_168, _cache(34, 4, 256), stored=4_300_079_472, gated=True
)
GEMMA3_12B = HubWeights(
    "google/gemma-3-12b-it", GEMMA, 11_766_034_176, _cache(48, 8, 256), stored=12_187_325_040, gated=True
)

LLAMA32_1B = HubWeights("meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2", 1_235_814_400, _cache(16, 8, 64), gated=True)
LLAMA31_8B = HubWeights("meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1", 8_030_261_248, _cache(32, 8, 128), gated=True)

R1_QWEN_1_5B = HubWeights("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", MIT, 1_777_088_000, _cache(28, 2, 128))
R1_QWEN_7B = HubWeights("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", MIT, 7_615_616_512, _cache(28, 4, 128))
R1_QWEN_14B = HubWeights("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", MIT, 14_770_033_664, _cache(48, 8, 128))
