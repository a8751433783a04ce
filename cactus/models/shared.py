"""A small draft model that borrows the verifier's embeddings and output head.

Whatever the verifier's family, it is an ordinary Llama of a few layers: `embed_tokens` is the verifier's own tensor,
`lm_head` holds the verifier's head rows of `token_ids`, the tokens worth drafting, so
its logits are over those k tokens only. On disk are only the layers, the last norm and
`token_ids`. Knows nothing of sampling, rules, or how the layers were trained.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cactus.errors import CactusError
from cactus.files import filling
from cactus.sums import CONFIG, WEIGHTS, write_sums

_SHARED = ("model.embed_tokens.", "lm_head.")
_WEIGHTS = "model{suffix}.safetensors"
# The rest comes from the verifier's config; these are checked or tell a reader what this is.
_CONFIG = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
# What it has in common with the verifier, where the verifier has it.
_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "initializer_range",
)
_SHARD_SIZE = "8MB"  # stays below the 10 MB at which repositories want Git LFS


def build(
    verifier_model: PreTrainedModel,
    token_ids: Tensor,  # int64 [k]
    num_layers: int = 2,
    init_from: Sequence[int] = (0, -1),
) -> LlamaForCausalLM:
    """A draft model whose layers start as copies of the verifier's layers `init_from`, as far as they have the same."""
    _check_token_ids(token_ids, _text_config(verifier_model).vocab_size)
    if len(init_from) != num_layers:
        raise CactusError(f"init_from names {len(init_from)} layers, num_layers is {num_layers}")
    draft_model = empty(verifier_model, token_ids, num_layers)
    decoder = verifier_model.get_decoder()
    for layer, source in zip(draft_model.model.layers, init_from, strict=True):
        _copy_common(layer, decoder.layers[source])
    _copy_common(draft_model.model.norm, decoder.norm)
    return draft_model


def _copy_common(module: nn.Module, source: nn.Module) -> None:
    """What both have by the same name: other families have more norms, or biases, than a Llama layer."""
    own = module.state_dict()
    module.load_state_dict(own | {name: value for name, value in source.state_dict().items() if name in own})


def empty(verifier_model: PreTrainedModel, token_ids: Tensor, num_layers: int) -> LlamaForCausalLM:
    """The right shape, verifier's embeddings and head, layers not yet meaningful."""
    _check_family(verifier_model)
    head, text = verifier_model.get_output_embeddings().weight, _text_config(verifier_model)
    config = _llama_config(text, num_layers)
    config.vocab_size, config.pad_token_id = 1, None  # spares a table that is replaced at once
    with torch.random.fork_rng(devices=[]):  # the random layers are replaced; leave no trace of them
        draft_model = LlamaForCausalLM(config)
        draft_model.to(device=head.device, dtype=head.dtype)  # type: ignore[call-arg]
    # `to` has rounded the rotary frequencies as well: made anew they are as precise as the verifier's.
    draft_model.model.rotary_emb = LlamaRotaryEmbedding(config).to(head.device)
    draft_model.model.embed_tokens = verifier_model.get_input_embeddings()
    draft_model.lm_head = _trimmed_head(head, token_ids)
    config.vocab_size, config.pad_token_id = text.vocab_size, text.pad_token_id  # of what it reads, not what it drafts
    return draft_model.eval()


def _check_family(model: PreTrainedModel) -> None:
    decoder = model.get_decoder()
    if not (
        hasattr(_text_config(model), "rope_parameters") and hasattr(decoder, "layers") and hasattr(decoder, "norm")
    ):
        raise CactusError(
            f"{type(model).__name__} cannot lend its embeddings to a draft model: it is not built like a Llama (layers"
            " with rotary positions and a last norm); give a draft model of its own, or none (prompt lookup)"
        )


def _text_config(model: PreTrainedModel) -> PreTrainedConfig:
    return model.config.get_text_config(decoder=True)


def _llama_config(text: PreTrainedConfig, num_layers: int) -> LlamaConfig:
    """Of a Llama as wide as a model with this configuration."""
    rope = text.rope_parameters
    return LlamaConfig(
        num_hidden_layers=num_layers,
        rope_parameters=dict(rope.get("full_attention", rope)),  # some have one for each kind of layer
        hidden_act=getattr(text, "hidden_act", None) or text.hidden_activation,
        attn_implementation=text._attn_implementation,  # type: ignore[call-arg]
        **{name: getattr(text, name) for name in _SHAPE if hasattr(text, name)},
    )


def _trimmed_head(head: Tensor, token_ids: Tensor) -> nn.Linear:
    rows = head.detach()[token_ids.to(head.device)]  # [k, hidden]
    linear = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(rows, requires_grad=False)
    return linear


def own_state(draft_model: LlamaForCausalLM) -> dict[str, Tensor]:
    """What is the draft model's own: its layers and norm."""
    state = draft_model.state_dict()
    return {name: value for name, value in state.items() if not name.startswith(_SHARED)}


def save(folder: str | Path, draft_model: LlamaForCausalLM, token_ids: Tensor) -> None:
    """Layers and norm in bfloat16, `token_ids`, and config.json; old weights are removed."""
    write(folder, draft_model.config, own_state(draft_model), token_ids)


def write(folder: str | Path, model_config: PreTrainedConfig, own: dict[str, Tensor], token_ids: Tensor) -> None:
    """The files of a draft model with these weights of its own."""
    state = {name: value.bfloat16().cpu() for name, value in own.items()}
    state["token_ids"] = token_ids.int().cpu()
    config = {name: getattr(model_config, name) for name in _CONFIG}
    config |= {"draft_vocab_size": len(token_ids), "dtype": "bfloat16"}
    with filling(Path(folder), CONFIG, WEIGHTS) as place:
        save_torch_state_dict(state, place, filename_pattern=_WEIGHTS, max_shard_size=_SHARD_SIZE)
        (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        write_sums(place)


def load(folder: str | Path, verifier_model: PreTrainedModel) -> tuple[LlamaForCausalLM, Tensor]:
    """The draft model in the verifier's dtype and on its device, and `token_ids` int64 [k].

    `CactusError` (a ValueError) if a file is missing or damaged, or was made for another verifier.
    """
    state, token_ids, num_layers = read(folder, verifier_model)
    draft_model = empty(verifier_model, token_ids, num_layers)
    check_state(folder, own_state(draft_model), state)
    draft_model.load_state_dict(state, strict=False)
    return draft_model, token_ids


def read(folder: str | Path, verifier_model: PreTrainedModel) -> tuple[dict[str, Tensor], Tensor, int]:
    """What `write` wrote: weights, `token_ids` int64 [k] and the number of layers; checked against the verifier."""
    folder = Path(folder)
    config = _read_json(folder / "config.json")
    if not isinstance(config.get("num_hidden_layers"), int):
        raise CactusError(f"{folder}: config.json does not say num_hidden_layers")
    for name in ("hidden_size", "vocab_size"):
        found, wanted = config.get(name), getattr(_text_config(verifier_model), name)
        if found != wanted:
            raise CactusError(f"{folder}: {name} is {found}, the verifier's is {wanted}")
    state = _read_shards(folder)
    token_ids = state.pop("token_ids", torch.empty(0)).long()
    _check_token_ids(token_ids, _text_config(verifier_model).vocab_size)
    return state, token_ids, config["num_hidden_layers"]


def check_state(folder: str | Path, wanted: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """`CactusError` naming what differs in names or shapes."""
    if wrong := sorted(wanted.keys() ^ state.keys()):
        raise CactusError(f"{folder}: weights missing or not expected: {', '.join(wrong[:3])}")
    for name, value in state.items():
        if value.shape != wanted[name].shape:
            shapes = f"{list(value.shape)}, expected {list(wanted[name].shape)}"
            raise CactusError(f"{folder}: {name} has shape {shapes}")


def _read_shards(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = set(_read_json(index).get("weight_map", {}).values())
    state: dict[str, Tensor] = {}
    for name in sorted(files):
        try:
            state |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise CactusError(f"{folder}: cannot read {name}: {error}") from error
    return state


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CactusError(f"cannot read {path}: {error}") from error


def _check_token_ids(token_ids: Tensor, vocab_size: int) -> None:
    if token_ids.ndim != 1 or not len(token_ids):
        raise CactusError(f"token_ids must be a non-empty vector, not {list(token_ids.shape)}")
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise CactusError(f"token_ids must lie in 0..{vocab_size - 1}")
    if len(token_ids.unique()) != len(token_ids):
        raise CactusError("token_ids must not repeat a token")
