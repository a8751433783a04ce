"""A model in the hub library's own cache: shared with other programs, and a stopped download goes on.

Files that are there already are used without a look at the network. Respects huggingface_hub's settings
(HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME, HF_TOKEN).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cactus.errors import UnavailableError
from cactus.weights import hub, snapshot
from cactus.weights.snapshot import cache_folder
from cactus.weights.source import Progress, SourceError, silent
from cactus.weights.store import index_names, require_files, unreadable

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
        """Its folder, downloaded where it is not there yet or damaged.

        `verify` compares every byte with the hub's checksums, else only those of files that are new or have changed.
        `UnavailableError` says why it cannot be had, and how to get a gated one.
        """
        try:
            folder = self._kept()
            faults = self._faults(folder, verify, progress) if folder else {}
            if folder is None or faults:
                folder = self._download(faults, progress)
                faults = self._faults(folder, verify, progress)
            if faults:
                raise SourceError(in_words(faults))
            require_files(folder)
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
        """The newest snapshot, if the files that its index and the hub's listing name are there."""
        folder = self._snapshot()
        if folder is None:
            return None
        try:
            shards = index_names(folder) or {"model.safetensors"}
        except (SourceError, OSError):
            return None
        whole = all((folder / shard).exists() for shard in shards) and not snapshot.faults(self.repo_id, folder)
        return folder if whole else None

    def _snapshot(self) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(self.repo_id, "config.json")
        return Path(config).parent if isinstance(config, str) else None

    def _faults(self, folder: Path, verify: bool, progress: Progress) -> dict[str, str]:
        """Files that are there and not as they should be."""
        found = {name: f"is damaged: {why}" for name, why in unreadable(folder).items()}
        found |= {name: why for name, why in snapshot.faults(self.repo_id, folder).items() if (folder / name).exists()}
        return found | snapshot.altered(self.repo_id, folder, progress, verify=verify)

    def _download(self, faults: dict[str, str], progress: Progress) -> Path:
        again = self._snapshot()
        faults = faults or (self._faults(again, False, progress) if again else {})
        progress(None, f"looking for {self.repo_id} on the model hub")
        try:
            info = hub.look_up(self.repo_id)
            snapshot.download(self.repo_id, info, hub.PATTERNS, list(faults), progress, f"downloading {self.repo_id}")
        except SourceError as error:
            raise SourceError(
                f"{in_words(faults)}, and it cannot be fetched again: {error}" if faults else error
            ) from error
        kept = self._kept()
        if kept is None:
            left = snapshot.faults(self.repo_id, again) if (again := self._snapshot()) else {}
            raise SourceError(in_words(left) if left else "its safetensors are not complete")
        return kept


def in_words(faults: dict[str, str]) -> str:
    """The first one."""
    return " ".join(next(iter(faults.items())))


def how_to_get_gated(repo_id: str) -> str:
    """What its owner asks for, and where the token goes."""
    return (
        f"accept its licence at https://huggingface.co/{repo_id}, then set HF_TOKEN to a token of that account "
        "(or run `hf auth login`)"
    )
