"""What can be done with which pair on machines that are made up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cactus.errors import UnavailableError
from cactus.machine import Accelerator, Machine
from cactus.pairs import PAIRS
from cactus.pairs.state import state_of
from cactus.pairs.status import check_memory, memory_needed, needs_spreading, number_bytes, status_of

GB = 10**9
BIG_DISK = 2_000 * GB


def gpu(size: int) -> Accelerator:
    return Accelerator("NVIDIA A", free=size * GB - GB // 2, total=size * GB)


EVERY_WEIGHT = frozenset(weights.name for spec in PAIRS.values() for weights in (spec.verifier, *spec.hub_weights))
LAPTOP = Machine(memory=6 * GB, disk=100 * GB, number_bytes=4, hub="reachable")
ONE_GPU = Machine(memory=20 * GB, accelerators=(gpu(24),), disk=BIG_DISK, hub="reachable")
TWO_GPUS = Machine(memory=200 * GB, accelerators=(gpu(80), gpu(80)), disk=BIG_DISK, hub="reachable", has_token=True)
CPU_ONLY = Machine(memory=24 * GB, disk=BIG_DISK, hub="reachable")


def states(machine: Machine) -> dict[str, str]:
    return {name: status_of(spec, machine).state for name, spec in PAIRS.items()}


def test_a_laptop_with_8_gb_takes_the_small_pairs():
    found = states(LAPTOP)
    fits = {name for name, state in found.items() if state != "too large here"}
    assert fits == {
        "smollm2-135m", "smollm2-135m-two-layer", "smollm2-135m-lookup", "pocket", "qwen2.5-0.5b-1.5b",
        "smollm2-135m-1.7b",
    }  # fmt: skip
    assert found["qwen2.5-0.5b-1.5b"] == "can download"


def test_a_gpu_with_24_gb_takes_9b_and_larger_ones_partly():
    found = {name: status_of(spec, ONE_GPU) for name, spec in PAIRS.items()}
    assert found["qwen3-0.6b-8b"].state == "can download" and "main memory" not in found["qwen3-0.6b-8b"].reason
    assert found["qwen3-0.6b-14b"].state == "can download"
    assert "stay in main memory, which is slow" in found["qwen3-0.6b-14b"].reason
    assert needs_spreading(PAIRS["qwen3-0.6b-14b"], ONE_GPU) and not needs_spreading(PAIRS["qwen3-0.6b-8b"], ONE_GPU)
    large = found["qwen3-4b-32b"]
    assert large.state == "too large here"
    assert large.reason == ("it needs about 78.6 GB of memory; 23.5 GB on NVIDIA A and 20.0 GB of main memory are free")
    assert found["llama3-1b-8b"].state == "gated"


def test_two_gpus_take_everything_and_spread_what_one_cannot_hold():
    assert {name for name, state in states(TWO_GPUS).items() if state != "can download"} == {"pocket"}
    half = replace(TWO_GPUS, accelerators=(gpu(48), gpu(48)))
    assert needs_spreading(PAIRS["qwen3-4b-32b"], half)
    assert "main memory" not in status_of(PAIRS["qwen3-4b-32b"], half).reason
    assert (
        "on 2 × NVIDIA A"
        in status_of(PAIRS["qwen3-4b-32b"], replace(half, memory=0, accelerators=(gpu(8),) * 2)).reason
    )


def test_a_cpu_with_24_gb_takes_9b_with_two_bytes_a_number():
    found = states(CPU_ONLY)
    assert found["qwen2.5-0.5b-7b"] == found["qwen3-0.6b-8b"] == "can download"
    assert found["qwen3-0.6b-14b"] == "too large here"


def test_numbers_are_wide_where_that_is_faster_and_fits():
    small, middle = PAIRS["smollm2-135m"], PAIRS["qwen2.5-0.5b-1.5b"]
    assert number_bytes(small, LAPTOP) == 4 and number_bytes(middle, LAPTOP) == 2
    assert number_bytes(middle, replace(LAPTOP, memory=24 * GB)) == 4
    assert number_bytes(small, ONE_GPU) == 2


def test_the_memory_of_a_pair_is_weights_and_cache_and_room_for_a_run():
    spec = PAIRS["qwen2.5-0.5b-7b"]
    needed = memory_needed(spec, 2, on_cpu=False)
    cache = 2 * 4096 * (2 * 28 * 4 * 128 + 2 * 24 * 2 * 64)
    assert needed == math.ceil(1.2 * 2 * 7_615_616_512) > 2 * (7_615_616_512 + 494_032_768) + cache + 500_000_000
    small = PAIRS["qwen2.5-0.5b-1.5b"]
    rest = 2 * 4096 * (2 * 28 * 2 * 128 + 2 * 24 * 2 * 64) + 500_000_000
    assert memory_needed(small, 2, on_cpu=False) == 2 * (1_543_714_304 + 494_032_768) + rest
    assert memory_needed(small, 2, on_cpu=True) == 2 * 1_543_714_304 + 3 * 494_032_768 + rest  # an int8 copy beside
    assert memory_needed(small, 4, on_cpu=True) == 2 * memory_needed(small, 2, on_cpu=False) - 500_000_000


def test_what_is_kept_is_ready_without_a_hub_or_a_token():
    offline = replace(TWO_GPUS, kept=EVERY_WEIGHT, hub="unreachable", has_token=False)
    assert set(states(offline).values()) == {"ready"}
    assert status_of(PAIRS["qwen3-0.6b-8b"], offline).reason == ""


def test_one_of_two_models_kept_leaves_the_other_to_be_downloaded():
    spec = PAIRS["qwen2.5-0.5b-1.5b"]
    status = status_of(spec, replace(CPU_ONLY, kept=frozenset({"Qwen/Qwen2.5-1.5B-Instruct"})))
    assert status.state == "can download" and "(988 MB)" in status.reason


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"hub": "unreachable"}, "unreachable", "the model hub, which cannot be reached"),
        ({"hub": "switched off"}, "unreachable", "HF_HUB_OFFLINE"),
        ({"hub": "unknown"}, "can download", "17.9 GB"),
        ({"disk": 3 * GB}, "too large here", "its download needs 17.9 GB; 3.0 GB are free on the disk"),
    ],
)
def test_what_stands_in_the_way_of_a_download(changes, state, reason):
    status = status_of(PAIRS["qwen3-0.6b-8b"], replace(TWO_GPUS, **changes))
    assert status.state == state and reason in status.reason
    assert status.usable == (state == "can download")


def test_a_gated_pair_says_how_to_get_it():
    status = status_of(PAIRS["llama3-1b-8b"], replace(TWO_GPUS, has_token=False))
    assert status.state == "gated" and not status.usable
    assert "https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct" in status.reason and "HF_TOKEN" in status.reason
    assert status_of(PAIRS["llama3-1b-8b"], TWO_GPUS).state == "can download"


def test_pairs_that_need_no_hub_are_there_without_one():
    offline = Machine(memory=4 * GB, hub="unreachable")
    assert status_of(PAIRS["pocket"], replace(offline, kept=frozenset({"pocket"}))).state == "ready"
    assert status_of(PAIRS["smollm2-135m"], offline).state == "can download"


def test_what_does_not_fit_is_refused_with_both_sizes():
    with pytest.raises(
        UnavailableError, match=r"Qwen3 8B \+ 0\.6B is too large here: it needs about 19\.\d GB .* 6\.0 GB"
    ):
        check_memory(PAIRS["qwen3-0.6b-8b"], LAPTOP)
    check_memory(PAIRS["qwen2.5-0.5b-1.5b"], LAPTOP)


def test_a_loaded_pair_is_ready_and_a_failed_one_says_why():
    spec = PAIRS["qwen3-0.6b-8b"]
    full = replace(TWO_GPUS, memory=0, accelerators=())
    loaded = state_of(spec, full, device="cuda:0, bfloat16")
    assert (loaded.state, loaded.needs, loaded.loaded) == ("ready", "", True)
    failed = state_of(spec, TWO_GPUS, failure="it is damaged")
    assert failed.usable and not failed.available and failed.needs == "it is damaged"
    assert state_of(PAIRS["llama3-1b-8b"], TWO_GPUS).licence == "Llama 3.1, Llama 3.2"
    assert loaded.settings == {"draft_length": 5, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
