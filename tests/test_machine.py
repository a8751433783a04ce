"""What is found out about a machine: with and without torch, within a container, with and without a driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from cactus import machine
from cactus.machine import Accelerator, Machine
from cactus.models.placement import choose_device, choose_dtype

ROOT = Path(__file__).resolve().parents[1]


def test_this_machine_is_seen_alike_with_and_without_torch():
    code = "import sys; from cactus.machine import look; m = look(); print(m.number_bytes, len(m.accelerators)); "
    code += "sys.exit('torch' in sys.modules)"
    alone = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    here = machine.look()
    assert alone.split() == [str(here.number_bytes), str(len(here.accelerators))]
    device = choose_device()
    if device.type == "cpu":
        assert here.number_bytes == choose_dtype("auto", device).itemsize


def test_room_that_loaded_models_would_make():
    here = Machine(memory=10, accelerators=(Accelerator("NVIDIA A", 5, 9), Accelerator("NVIDIA A", 6, 9)))
    assert here.with_room(3).memory == 13
    assert [device.free for device in here.with_room(3, 1).accelerators] == [5, 9]
    assert here.with_room(3, 1).accelerator_memory == 14


@pytest.mark.parametrize(("device", "free"), [("auto", [1, 2]), ("cuda", [1, 2]), ("cuda:1", [2]), ("cpu", [])])
def test_only_the_device_that_is_to_be_used_counts(device, free, monkeypatch):
    both = (Accelerator("NVIDIA A", 1, 9, False), Accelerator("NVIDIA A", 2, 9, False))
    monkeypatch.setattr(machine, "accelerators", lambda: both)
    monkeypatch.setattr(machine, "cpu_has_bfloat16", lambda: True)
    here = machine.look(device=device)
    assert [device.free for device in here.accelerators] == free
    assert here.number_bytes == (4 if free else 2)


def test_a_containers_limit_counts_less_what_is_used_and_not_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10**12})())
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.free_memory() == 10**12
    for name, text in (("max", "16000"), ("current", "6000"), ("stat", "anon 4000\ninactive_file 1500\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert machine.free_memory() == 16000 - 6000 + 1500
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.free_memory() == 10**12


def test_the_drivers_tool_is_read(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA L4, 22563, 23034, 8.9'\necho 'Tesla T4, 15000, 15360, 7.5'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._by_driver() == (
        Accelerator("NVIDIA L4", 22563 << 20, 23034 << 20, True),
        Accelerator("Tesla T4", 15000 << 20, 15360 << 20, False),
    )


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "sleep 5"])
def test_a_driver_that_does_not_answer_means_no_gpu(script, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(machine, "SMI_SECONDS", 0.3)
    assert machine._by_driver() == ()


def test_torch_is_asked_where_it_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (10, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 60)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 40)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA A")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert machine.accelerators() == (Accelerator("NVIDIA A", 30, 100, False),)
    assert machine.look().number_bytes == 4


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path):
    assert machine.free_disk(tmp_path / "not" / "yet") > 0
