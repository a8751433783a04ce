"""A tiny Llama and the tiny tokenizer as a GGUF file, as converters write them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import tiny
from torch import Tensor
from transformers import PreTrainedModel

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write(path: Path, model: PreTrainedModel) -> Path:
    """In float32, so that reading it back gives the same numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    _sizes(writer, model)
    _vocabulary(writer)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(_name(name), _ordered(name, tensor, model).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sizes(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    tokenizer = tiny.tokenizer()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    kinds = (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL)
    writer.add_token_types([kinds[token not in tiny.SPECIAL] for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(tiny.TEMPLATE)


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _ordered(name: str, tensor: Tensor, model: PreTrainedModel) -> Tensor:
    """Queries and keys are stored with the two halves of a head's rotation interleaved."""
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    count = next((heads[part] for part in heads if part in name), 0)
    if not count:
        return tensor
    rows, columns = tensor.shape
    return tensor.view(count, 2, rows // count // 2, columns).transpose(1, 2).reshape(rows, columns)
