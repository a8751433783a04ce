"""The text model of a checkpoint that also reads images: the rest of it is not loaded."""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

# Where such checkpoints keep it, as old and as new versions of the library write them, and where it is alone.
NAMES = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}


def text_part(config: PreTrainedConfig) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """The text model's configuration and what to tell `from_pretrained`, where the library has that model alone;
    else the configuration as it is.
    """
    text = config.get_text_config(decoder=True)
    if text is config or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return config, {}
    return text, {"key_mapping": NAMES}
