"""What happens to the model after watch(): followed, or named, never wrong silently."""

import peft
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.monitor import changes
from torchvitals.record import ConfigError


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Look at every monitored step."""
    monkeypatch.setattr(changes.Changes, "look", _eager(changes.Changes.look))


def _eager(look):
    def eager(self):
        self._look_s = 0.0
        return look(self)

    return eager


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def step(model, optimizer):
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def events(path, kind="model_changed"):
    with torchvitals.open_run(path) as history:
        return [(event.step, event.text) for event in history.events(kind)]


def test_a_parameter_that_joins_is_named_once(tmp_path, caplog):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        step(model, optimizer)
        model.append(nn.Linear(2, 2))
        optimizer.add_param_group({"params": list(model[3].parameters())})
        for _ in range(3):
            step(model, optimizer)
    ((_, text),) = events(tmp_path / "run")
    assert "joined: 3.bias, 3.weight" in text
    assert caplog.text.count("changed after watch()") == 1


def test_an_unfrozen_parameter_and_a_swapped_layer_are_named(tmp_path, caplog):
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        step(model, optimizer)
        model[0].requires_grad_(True)
        step(model, optimizer)
        model[2] = nn.Linear(8, 2)
        optimizer.add_param_group({"params": list(model[2].parameters())})
        step(model, optimizer)
    texts = [text for _, text in events(tmp_path / "run")]
    assert "unfrozen: 0.bias, 0.weight" in texts[0]
    assert "replaced: 2.bias, 2.weight" in texts[1]
    assert "module replaced: 2" in texts[1]
    assert "resume=True" in caplog.text


def test_a_frozen_parameter_is_followed(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        step(model, optimizer)
        model[0].requires_grad_(False)
        step(model, optimizer)
    assert events(tmp_path / "run") == []
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("gradient/0.weight/norm").steps.tolist() == [1]
        assert history.series("gradient/2.weight/norm").steps.tolist() == [1, 2]


def test_a_parameter_frozen_and_unfrozen_again_is_followed(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, updates="exact"):
        for trained in (True, False, False, True):
            model[0].requires_grad_(trained)
            before = model[0].weight.detach().clone()
            step(model, optimizer)
        after = model[0].weight.detach()
        ratio = float((after - before).norm() / after.norm())
    assert events(tmp_path / "run") == []
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("gradient/0.weight/norm").steps.tolist() == [1, 4]
        found = history.series("update/0.weight/ratio")
        assert found.steps.tolist() == [1, 2, 3, 4]
        assert found.values[1:3].tolist() == [0.0, 0.0]
        assert found.values[3] == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("updates", ["exact", "sampled"])
def test_a_layer_initialised_anew_mid_run_is_followed(tmp_path, updates):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, updates=updates):
        step(model, optimizer)
        torch.manual_seed(7)
        model[0].reset_parameters()
        before = model[0].weight.detach().clone()
        step(model, optimizer)
        after = model[0].weight.detach()
    assert events(tmp_path / "run") == []
    with torchvitals.open_run(tmp_path / "run") as history:
        row = {str(key): value for key, value in history.row(2).items()}
    # The change is the step's, not that of drawing new weights.
    ratio = float((after - before).norm() / after.norm())
    assert row["update/0.weight/ratio"] == pytest.approx(ratio, rel=1e-4)
    assert row["parameter/0.weight/norm"] == pytest.approx(float(after.norm()), rel=1e-5)


@pytest.mark.parametrize("updates", ["exact", "sampled"])
def test_a_group_added_to_the_optimizer_is_followed(tmp_path, updates):
    model = net()
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.02)
    path = tmp_path / "run"
    with torchvitals.watch(model, optimizer, run=path, every=1, updates=updates, diagnose=False):
        step(model, optimizer)
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.005})
        model[0].zero_grad()
        for _ in range(12):
            before = model[0].weight.detach().clone()
            step(model, optimizer)
        after = model[0].weight.detach()
        ratio = float((after - before).norm() / after.norm())
    assert events(path) == []
    assert events(path, "degraded") == []
    with torchvitals.open_run(path) as history:
        assert history.series("optimizer/group0/lr").values.tolist() == pytest.approx([0.02] * 13)
        added = history.series("optimizer/group1/lr")
        assert added.steps.tolist() == list(range(2, 14))
        assert added.values.tolist() == pytest.approx([0.005] * 12)
        found = history.series("update/0.weight/ratio")
        assert found.steps.tolist() == list(range(2, 14))
        assert found.values[-1] == pytest.approx(ratio, rel=1e-4)
        assert len(history.series("optimizer/0.weight/g2_over_v_rms").steps) > 0
        assert len(history.series("optimizer/2.weight/g2_over_v_rms").steps) > 0


def test_a_group_of_parameters_that_are_not_the_models_is_named(tmp_path):
    model, extra = net(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        step(model, optimizer)
        optimizer.add_param_group({"params": [extra]})
        step(model, optimizer)
        step(model, optimizer)
    ((_, text),) = events(tmp_path / "run")
    assert text == "not the model's, but stepped: group1"


def test_an_optimizer_made_anew_is_followed(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        step(model, optimizer)
        del optimizer
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        step(model, optimizer)
        step(model, optimizer)
        assert monitor.step_number == 3
    (found,) = events(tmp_path / "run", "optimizer_replaced")
    assert "AdamW" in found[1]
    with torchvitals.open_run(tmp_path / "run") as history:
        rates = history.series("optimizer/group0/lr").values
        assert rates.tolist() == pytest.approx([0.1, 0.02, 0.02])
        assert history.series("update/0.weight/ratio").steps.tolist() == [1, 2, 3]
    assert not optimizer._optimizer_step_pre_hooks


def test_an_optimizer_of_other_parameters_is_left_alone(tmp_path):
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        step(model, optimizer)
        step(other, stranger)
        assert monitor.step_number == 1
    assert not stranger._optimizer_step_pre_hooks


def test_weights_loaded_or_moved_mid_run_are_followed(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, updates="exact"):
        step(model, optimizer)
        state = {name: torch.full_like(value, 3.0) for name, value in net().state_dict().items()}
        model.load_state_dict(state)
        model[0].weight.data = model[0].weight.data.clone()  # other memory
        step(model, optimizer)
        weight = model[0].weight.detach()
        moved = (weight - 3.0).norm() / weight.norm()
    with torchvitals.open_run(tmp_path / "run") as history:
        # The change is that of the step, not of the loading.
        assert history.series("update/0.weight/ratio").values[1] == pytest.approx(
            float(moved), rel=1e-3
        )


def test_a_model_on_meta_is_watched_once_it_has_numbers(tmp_path):
    with torch.device("meta"):
        model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"0\.weight is on the meta device .* Materialise"):
        torchvitals.watch(model, optimizer, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check_gradients(tmp_path / "run", model, optimizer)


def test_lazy_modules_are_watched_once_they_have_shapes(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"0\.weight .* lazy module .* Call the model once"):
        torchvitals.watch(model, optimizer, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    model(torch.randn(6, 4))
    check_gradients(tmp_path / "run", model, optimizer)


def check_gradients(path, model, optimizer):
    with torchvitals.watch(model, optimizer, run=path, every=1):
        model(torch.randn(6, 4)).square().mean().backward()
        wanted = {name: float(p.grad.double().norm()) for name, p in model.named_parameters()}
        optimizer.step()
    with torchvitals.open_run(path) as history:
        for name, norm in wanted.items():
            found = history.series(f"gradient/{name}/norm").values
            assert found.tolist() == pytest.approx([norm], rel=1e-5)


def test_lora_of_peft_is_watched(tmp_path):
    torch.manual_seed(0)
    base = nn.Sequential()
    base.add_module("first", nn.Linear(4, 8))
    base.add_module("act", nn.ReLU())
    base.add_module("last", nn.Linear(8, 2))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["first", "last"]))
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        for _ in range(2):
            step(model, optimizer)
    with torchvitals.open_run(tmp_path / "run") as history:
        sites = {key.site for key in history.keys("gradient", stat="rms")}
    assert sites
    assert all("lora" in site for site in sites)
    assert events(tmp_path / "run") == []


def test_lora_injected_after_watch_is_named(tmp_path):
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 8))
    model.add_module("last", nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        step(model, optimizer)
        peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["first"]), model)
        optimizer.add_param_group(
            {"params": [p for name, p in model.named_parameters() if "lora" in name]}
        )
        step(model, optimizer)
        step(model, optimizer)
    ((_, text),) = events(tmp_path / "run")
    assert "joined: " in text
    assert "first.lora_A.default.weight" in text
    assert "module replaced: first" in text


def test_functional_calls_do_not_count_as_the_models(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        parameters = dict(model.named_parameters())
        x = torch.randn(6, 4)

        def loss_of(values):
            return torch.func.functional_call(model, values, (x,)).square().mean()

        gradients = torch.func.grad(loss_of)(parameters)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    with torchvitals.open_run(tmp_path / "run") as history:
        wanted = float(gradients["0.weight"].detach().norm())
        assert history.series("gradient/0.weight/norm").values[0] == pytest.approx(wanted, rel=1e-4)
