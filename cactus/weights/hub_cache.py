"""A model in the hub library's own cache: shared with other programs, and a stopped download goes on where it was.

What is there already is used without a look at the network. Respects huggingface_hub's settings (HF_HUB_OFFLINE,
HF_ENDPOINT, HF_HOME, HF_TOKEN).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cactus.errors import UnavailableError
from cactus.weights import hub
from cactus.weights.process import Growth, run_thread
from cactus.weights.source import Progress, SourceError, part, require_space, silent
from cactus.weights.store import index_names, require_complete

STORED_BYTES = 2  # of a number in the checkpoints that are listed here, all of them bfloat16


@dataclass(frozen=True)
class HubWeights:
    """One repository, as its authors publish it.

    parameters: numbers in memory, shared ones once, of the language model alone. stored: numbers in its safetensors,
    where these hold more (an output head that equals the embeddings, an image encoder). cache_numbers: keys and
    values of one token. gated: whether its owner asks for a licence to be accepted and an account's token.
    """

    repo_id: str
    licence: str
    parameters: int
    cache_numbers: int
    stored: int = 0
    gated: bool = False

    @property
    def name(self) -> str:
        """With its owner, as the hub knows it."""
        return self.repo_id

    @property
    def size_bytes(self) -> int:
        """Of the language model at two bytes a number."""
        return STORED_BYTES * self.parameters

    @property
    def download_bytes(self) -> int:
        """Of all its safetensors."""
        return STORED_BYTES * (self.stored or self.parameters)

    @property
    def is_kept(self) -> bool:
        """Whether it is on this machine. A quick look at names: `fetch` reads the files' headers too."""
        return self._kept() is not None

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """Its folder, downloaded where it is not there yet; `verify` compares every byte with the hub's checksums.

        `UnavailableError` says why it cannot be had, and how to get a gated one.
        """
        try:
            folder = self._kept() or self._download(progress)
            require_complete(folder)
            if verify:
                _check_sums(folder, progress)
            return folder
        except SourceError as error:
            raise UnavailableError(f"{self.repo_id} cannot be had: {error}{self._advice()}") from error
        except OSError as error:
            raise UnavailableError(f"{self.repo_id} cannot be kept in {cache_folder()}: {error}") from error

    def origin(self, folder: Path) -> str:
        """For people: which weights the folder holds, and of which commit."""
        return f"{self.repo_id} (model hub, {self.licence}, {folder.name[:8]})"

    def _advice(self) -> str:
        return f"; {how_to_get_gated(self.repo_id)}" if self.gated else ""

    def _kept(self) -> Path | None:
        """The newest snapshot, if the files that its index names are there."""
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(self.repo_id, "config.json")
        if not isinstance(config, str):
            return None
        folder = Path(config).parent
        try:
            shards = index_names(folder) or {"model.safetensors"}
        except (SourceError, OSError):
            return None
        return folder if all((folder / shard).exists() for shard in shards) else None

    def _download(self, progress: Progress) -> Path:
        progress(None, f"looking for {self.repo_id} on the model hub")
        info = hub.look_up(self.repo_id)
        size = hub.wanted_bytes(info)
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        folder = cache / f"models--{self.repo_id.replace('/', '--')}" / "blobs"
        growth = Growth(folder, size, hub.STALL_SECONDS)
        require_space(cache, size - growth.size())
        run_thread(
            functools.partial(hub.download, self.repo_id),
            lambda: growth.report(progress, f"downloading {self.repo_id}"),
        )
        kept = self._kept()
        if kept is None:
            raise SourceError("its safetensors are not complete")
        return kept


def how_to_get_gated(repo_id: str) -> str:
    """What its owner asks for, and where the token goes."""
    return (
        f"accept its licence at https://huggingface.co/{repo_id}, then set HF_TOKEN to a token of that account "
        "(or run `hf auth login`)"
    )


def cache_folder() -> Path:
    """Where the hub's library keeps models."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _check_sums(folder: Path, progress: Progress) -> None:
    """The hub names large files by their SHA-256. `SourceError` names one that is damaged, and how to get it anew."""
    shards = sorted(folder.glob("*.safetensors"))
    for index, shard in enumerate(shards):
        blob = shard.resolve()
        part(progress, index / len(shards), 1.0)(0.0, f"reading {shard.name}")
        with blob.open("rb") as file:
            if len(blob.name) == 64 and hashlib.file_digest(file, "sha256").hexdigest() != blob.name:
                raise SourceError(f"{shard.name} is damaged; delete {blob} and fetch it again")
