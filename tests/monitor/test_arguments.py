"""Wrong arguments speak up at once, before a folder is made or a hook is set."""

import argparse
import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.monitor.environment import plain_config
from torchvitals.record import TENSOR_KINDS, ConfigError, RunExists, RunLocked

from .training import batches, make_net, train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1, got 0; use every=1 to measure each step"),
        ({"every": 2.5}, "every must be a whole number of steps, got 2.5"),
        ({"every": True}, "every must be a whole number"),
        ({"updates": "all"}, "updates must be 'sampled', 'exact' or False, got 'all'"),
        ({"histograms": "some"}, "histograms must be 'sampled', 'full' or False, got 'some'"),
        ({"include": "("}, r"include must be a regular expression or a list of them, got '\('"),
        ({"exclude": 3}, "exclude must be a regular expression or a list"),
        ({"activations": "["}, "activations must be True, False or a regular expression, got '.'"),
        ({"activations": 3}, "activations must be True, False or a regular expression, got 3"),
        ({"sample_size": 0}, "sample_size must be at least 1, got 0"),
        ({"backend": "cuda"}, "backend must be 'auto', 'native', 'triton' or 'torch', got 'cuda'"),
        ({"config": 3}, "config must be a dict, a dataclass or a namespace, got int"),
        ({"start_step": "5"}, "start_step must be a whole number, got '5'"),
        ({"start_step": -5}, "start_step must be at least 0, got -5"),
        ({"sample_size": 2.5}, "sample_size must be a whole number, got 2.5"),
        ({"sample_size": "5"}, "sample_size must be a whole number, got '5'"),
        ({"samples_every": None}, "samples_every must be a whole number, got None"),
        ({"total_steps": 10.5}, "total_steps must be a whole number, got 10.5"),
        ({"total_steps": "10"}, "total_steps must be a whole number, got '10'"),
        ({"total_steps": True}, "total_steps must be a whole number, got True"),
        ({"replicas_every": -1}, "replicas_every must be at least 0, got -1"),
        ({"on_finding": 3}, "on_finding must be a function that takes a finding, or None, got 3"),
        ({"gradients": "yes"}, "gradients must be True or False, got 'yes'"),
        ({"resume": "x"}, "resume must be True or False, got 'x'"),
        ({"histograms": 1}, "histograms must be 'sampled', 'full' or False, got 1"),
        ({"histograms": ["full"]}, "histograms must be 'sampled', 'full' or False, got .'full'"),
        ({"updates": ["exact"]}, "updates must be 'sampled', 'exact' or False, got .'exact'"),
        ({"updates": 0}, "updates must be 'sampled', 'exact' or False, got 0"),
        ({"stop_on": ["error"]}, "stop_on must be 'warning', 'error' or None, got .'error'"),
        ({"backend": ["torch"]}, "backend must be 'auto', 'native', 'triton' or 'torch', got ."),
        ({"thresholds": 3}, r"thresholds must be Thresholds\(…\) or a dict of limits, got 3"),
        ({"include": "nomatch"}, "include='nomatch' matches no parameter and no module: a pattern "
                                 "is tried from the start of a name .* names here are scale, bl"),
        ({"include": [b"head"]}, "include must be a regular expression or a list of them, got .b'"),
        ({"activations": "nomatch"}, "activations='nomatch' matches no module: .* the names here"),
    ],
)  # fmt: skip
def test_wrong_options(tmp_path, options, message):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=message):
        torchvitals.watch(model, optimizer, run=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (3, None, "model must be a torch.nn.Module, a list or a dict of them, got int"),
        ([], None, "model is an empty list: there is nothing to watch"),
        ({}, None, "model is an empty dict: there is nothing to watch"),
        (None, None, "model must be a torch.nn.Module, a list or a dict of them, got None$"),
        (nn.Linear, None, "got the class Linear .make one of it first"),
        ([nn.Linear(1, 1), 3], None, "got int at place 1 of the list"),
        ({"g": 1}, None, "got int for 'g'"),
        (nn.Linear(1, 1), torch.ones(()), "optimizer must be .* or a list of them, got Tensor"),
        (nn.Linear(1, 1), "adam", "optimizer must be a torch.optim.Optimizer or a list of them"),
        (nn.Linear(1, 1), 3, "optimizer must be a torch.optim.Optimizer or a list of them"),
        (nn.ReLU(), None, "has no parameters to watch"),
    ],
)
def test_wrong_models_and_optimizers(tmp_path, model, optimizer, message):
    with pytest.raises(ConfigError, match=message):
        torchvitals.watch(model, optimizer, run=tmp_path / "run")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (5, "run must be the path of a folder, got 5"),
        (b"runs", "run must be the path of a folder, got b'runs'"),
        ("", "run must be the path of a folder, got ''; leave it out for runs/<date>-<model>"),
        ("\0bad", "holds a character that no path can"),
        ("\ud800", "holds a character that no path can"),
    ],
)
def test_wrong_run_folders(in_tmp, run, message):
    with pytest.raises(ConfigError, match=message):
        torchvitals.watch(make_net(), run=run)
    assert list(in_tmp.iterdir()) == []


def test_a_wrong_argument_leaves_the_run_free(tmp_path):
    with pytest.raises(ConfigError):
        torchvitals.watch(make_net(), run=tmp_path / "run", start_step="5")
    with torchvitals.watch(make_net(), run=tmp_path / "run", start_step=np.int64(5)) as monitor:
        monitor.step()
        assert monitor.step_number == 6


def test_an_existing_run_is_not_overwritten(tmp_path):
    torchvitals.watch(make_net(), run=tmp_path / "run").close()
    with pytest.raises(RunExists, match="resume=True"):
        torchvitals.watch(make_net(), run=tmp_path / "run")


def test_one_writer_at_a_time(tmp_path):
    with (
        torchvitals.watch(make_net(), run=tmp_path / "run"),
        pytest.raises(RunLocked),
    ):
        torchvitals.watch(make_net(), run=tmp_path / "run", resume=True)


def test_step_by_hand_is_refused_with_an_optimizer(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        torchvitals.watch(model, optimizer, run=tmp_path / "run") as monitor,
        pytest.raises(ConfigError, match=r"a step ends with optimizer\.step\(\)"),
    ):
        monitor.step()


def test_an_optimizer_of_another_model_is_told(tmp_path, caplog):
    other = torch.optim.SGD(make_net().parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING), torchvitals.watch(make_net(), other, run=tmp_path / "r"):
        pass
    assert "SGD holds none of the watched model's parameters" in caplog.text


@dataclass
class Settings:
    lr: float = 0.1
    layers: tuple = (1, 2)


@pytest.mark.parametrize(
    "config",
    [{"lr": 0.1, "layers": (1, 2)}, Settings(), argparse.Namespace(lr=0.1, layers=[1, 2])],
)
def test_config_of_any_kind(config):
    assert plain_config(config) == {"lr": 0.1, "layers": [1, 2]}


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"activations": False}, {"gradient", "parameter", "update", "optimizer"}),
        ({"gradients": False}, {"activation", "parameter", "update", "optimizer"}),
        ({"parameters": False}, {"activation", "gradient", "update", "optimizer"}),
        ({"updates": False}, {"activation", "gradient", "parameter", "optimizer"}),
        ({"updates": "exact", "parameters": False}, {"activation", "gradient", "update",
                                                     "optimizer"}),
    ],
)  # fmt: skip
def test_each_part_can_be_switched_off(tmp_path, options, kinds):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, **options) as monitor:
        train(model, optimizer, batches(2))
        found = {k.kind for k in monitor.history.keys()} & TENSOR_KINDS - {"summary"}
    assert found == kinds


def test_include_and_exclude_choose_parameters(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1,
        include=[r"blocks\.0", "head"], exclude=r".*bias", activations=False,
    ) as monitor:  # fmt: skip
        train(model, optimizer, batches(1))
        sites = {k.site for k in monitor.history.keys(kind="gradient", stat="rms")}
    assert sites == {"blocks.0.0.weight", "blocks.0.2.weight", "head.weight"}
