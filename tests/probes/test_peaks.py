"""Peaks are found by the names torch gives devices, and are not guessed."""

import pytest
import torch

from torchvitals.probes.peaks import VARIABLE, peak_flops, peak_of
from torchvitals.record import ConfigError


@pytest.fixture(autouse=True)
def plain_settings(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA GH200 480GB", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("A100-SXM4-40GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA GeForce RTX 3090", 71e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("AMD Instinct MI300X", 1307.4e12),
    ],
)
def test_known_names(name, bfloat16):
    assert peak_of(name, torch.bfloat16) == pytest.approx(bfloat16)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A1000",
        "NVIDIA L400",
        "NVIDIA GB300",
        "Quadro P4000",
        "",
    ],
)
def test_names_that_only_look_alike(name):
    assert peak_of(name, torch.bfloat16) is None


def test_dtypes():
    name = "NVIDIA A100-SXM4-80GB"
    assert peak_of(name, torch.float16) == 312e12
    assert peak_of(name, torch.float32) == 19.5e12
    torch.set_float32_matmul_precision("high")
    assert peak_of(name, torch.float32) == 156e12
    assert peak_of("Tesla T4", torch.float32) == pytest.approx(8.1e12)
    assert peak_of(name, torch.float64) is None


def test_older_ones_know_no_bfloat16():
    assert peak_of("Tesla V100-SXM2-16GB", torch.bfloat16) is None
    assert peak_of("Tesla V100-SXM2-16GB", torch.float16) == 125e12
    assert peak_of("Tesla V100-PCIE-32GB", torch.float16) == 112e12
    assert peak_of("Tesla T4", torch.bfloat16) is None


def test_asks_torch_for_the_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    names = {0: "NVIDIA L4", 1: "Tesla T4"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index or 0])
    assert peak_flops(torch.device("cuda", 0)) == 121e12
    assert peak_flops("cuda:1", torch.float16) == 65e12
    assert peak_flops(0) == 121e12


def test_never_initialises_cuda(monkeypatch):
    def asked(_):
        raise AssertionError("asked for a name")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", asked)
    assert peak_flops("cuda") is None
    assert peak_flops("cpu") is None
    assert peak_flops("meta") is None


def test_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "2.5e11")
    assert peak_flops("cpu") == 2.5e11
    monkeypatch.setenv(VARIABLE, " ")
    assert peak_flops("cpu") is None


@pytest.mark.parametrize("given", ["fast", "0", "-1", "inf", "nan"])
def test_wrong_variable(monkeypatch, given):
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ConfigError, match=rf"{VARIABLE} must be a positive.*got '{given}'"):
        peak_flops("cpu")
