"""The count is what formulas say, and counting changes nothing."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.modules import module as module_internals
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from torchvitals.probes.compiled import calls_compiled
from torchvitals.probes.flops import MAX_IDLE_STEPS, FlopCounter, Tally


def boom(error):
    raise error


def counter(*models):
    found = []
    return FlopCounter(models, found.append, boom), found


def opened(*models):
    flops, found = counter(*models)
    assert flops.open()
    flops.begin_step()
    return flops, found


def count(model, *inputs):
    """What one step with one call counts."""
    flops, found = opened(model)
    model(*inputs)
    assert flops.end_step() == flops.flops
    assert found == ([] if flops.flops is None else [flops.flops])
    return flops.flops


@pytest.fixture(autouse=True)
def nothing_left():
    hooks = (module_internals._global_forward_pre_hooks, module_internals._global_forward_hooks)
    before = [dict(registered) for registered in hooks]
    yield
    assert [dict(registered) for registered in hooks] == before
    assert _get_current_dispatch_mode() is None


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(-2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)))))


class GPT(nn.Module):
    def __init__(self, width=32, heads=4, depth=2, words=50, dropout=0.1, checkpointed=False):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def make_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 16, 10),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn = kind(8, 16, num_layers=2, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Encoder(nn.Module):
    """Attention as torch's own layers call it."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.net(x)


def tokens():
    return torch.randint(0, 50, (3, 12))


MODELS = {
    "gpt": (GPT, tokens),
    "checkpointed gpt": (lambda: GPT(checkpointed=True), tokens),
    "cnn": (make_cnn, lambda: torch.randn(4, 3, 8, 8)),
    "lstm": (Recurrent, lambda: torch.randn(6, 3, 8)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(6, 3, 8)),
    "encoder": (Encoder, lambda: torch.randn(3, 5, 16)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 3), nn.GroupNorm(2, 6), nn.Softmax(-1)),
        lambda: torch.randn(2, 4, 9),
    ),
}


def training(name, *, counting, bf16=False, micro_batches=2):
    """Losses, last gradients, and the state of the generator after four steps."""
    make, data = MODELS[name]
    torch.manual_seed(0)
    model = make()
    flops, found = counter(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(4):
        if counting and step == 1:
            assert flops.open()
        flops.begin_step()
        for _ in range(micro_batches):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(data()).float().pow(2).mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        flops.end_step()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.zero_grad()
    assert len(found) == counting
    return losses, gradients, [*model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_bit_identical(name, bf16):
    if name == "lstm" and bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no LSTM in bf16")
    losses, gradients, state = training(name, counting=False, bf16=bf16)
    counted_losses, counted_gradients, counted_state = training(name, counting=True, bf16=bf16)
    assert counted_losses == losses
    assert all(map(torch.equal, counted_gradients, gradients))
    assert all(map(torch.equal, counted_state, state))


def test_linear():
    assert count(nn.Linear(7, 5), torch.randn(11, 7)) == 3 * 2 * 11 * 7 * 5
    assert count(nn.Linear(7, 5, bias=False), torch.randn(2, 3, 7)) == 3 * 2 * 6 * 7 * 5


def test_convolution():
    model = nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2)
    # Each of the 4×4×8 outputs meets 3×3 pixels of the 3 channels of its group.
    assert count(model, torch.randn(2, 6, 8, 8)) == 3 * 2 * 2 * (4 * 4 * 8) * (3 * 3 * 3)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_gpt(bf16, checkpointed):
    batch, length, width, depth, words = 3, 12, 32, 2, 50
    rows = batch * length
    linear = depth * 2 * rows * 12 * width * width + 2 * rows * width * words
    attention = depth * 2 * 2 * batch * length * length * width
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = count(GPT(checkpointed=checkpointed), torch.randint(0, words, (batch, length)))
    assert found == 3 * (linear + attention)


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_attention(backend):
    class Attend(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    chosen = {"flash": "FLASH_ATTENTION", "math": "MATH"}[backend]
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, chosen)):
        q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
        assert count(Attend(), q, k, v) == 2 * 2 * 4 * 9 * 5 * (8 + 8)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent(kind, gates):
    time, batch, inputs, hidden = 6, 3, 8, 16
    model = kind(inputs, hidden, num_layers=2, bidirectional=True)
    first = gates * hidden * (inputs + hidden)
    second = gates * hidden * (2 * hidden + hidden)
    expected = 3 * 2 * time * batch * 2 * (first + second)
    assert count(model, torch.randn(time, batch, inputs)) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((10, 8), (4, 8, 6), 2 * 10 * 8 * 6), ((4, 5, 8), (4, 8, 6), 2 * 4 * 5 * 8 * 6)],
)
def test_grouped_product(a, b, expected):
    from torchvitals.probes.flops import grouped_mm_flops

    assert grouped_mm_flops([torch.empty(a), torch.empty(b)], None) == expected


def test_fused_recurrent_layer():
    """The operator of CUDA, without one: weights of all layers in a list."""
    from torchvitals.probes.flops import recurrent_flops

    model = nn.LSTM(8, 16, num_layers=2)
    weights = [w.numel() for w in model.parameters() if w.dim() == 2]
    expected = 2 * 6 * 3 * sum(weights)
    arguments = [torch.empty(6, 3, 8), list(model.parameters())]
    assert recurrent_flops(arguments, None) == expected


def test_agrees_with_torch():
    from torch.utils.flop_counter import FlopCounterMode

    model, images = make_cnn(), torch.randn(4, 3, 8, 8)
    with FlopCounterMode(display=False) as reference:
        model(images)
    assert count(model, images) == 3 * reference.get_total_flops()


def test_micro_batches_add_up_and_only_training_counts():
    model = nn.Linear(4, 4)
    flops, found = opened(model)
    model.eval()
    model(torch.randn(100, 4))
    model.train()
    with torch.no_grad():
        model(torch.randn(100, 4))
    flops.begin_step()
    model(torch.randn(2, 4))
    model(torch.randn(3, 4))
    assert flops.end_step() == 3 * 2 * 5 * 16
    model(torch.randn(9, 4))
    assert flops.end_step() is None
    assert found == [3 * 2 * 5 * 16]


def test_what_was_before_the_step_is_forgotten():
    model = nn.Linear(4, 4)
    flops, found = opened(model)
    model(torch.randn(50, 4))
    flops.begin_step()
    model(torch.randn(1, 4))
    flops.end_step()
    assert found == [3 * 2 * 16]


def test_a_frozen_model_counts_once():
    model = nn.Linear(4, 4).requires_grad_(False)
    assert count(model, torch.randn(2, 4)) == 2 * 2 * 16


def test_inference_mode_inside():
    class WithFrozenPart(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            with torch.inference_mode():
                code = self.encoder(x.unsqueeze(0)).squeeze(0)
            return self.head(code.clone())

    assert count(WithFrozenPart(), torch.randn(3, 4)) == 3 * 2 * 3 * (24 + 12)


def test_several_models_one_inside_another():
    outer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    other = nn.Linear(4, 4)
    flops, found = opened(outer, outer[0], other)
    other(outer(torch.randn(1, 4)))
    flops.end_step()
    assert found == [3 * 3 * 2 * 16]


def test_a_model_that_calls_itself():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, times=2):
            x = self.linear(x)
            return self(x, times - 1) if times else self.linear(x)

    assert count(Again(), torch.randn(1, 4)) == 3 * 4 * 2 * 16


def test_wrapped_model():
    model = nn.Linear(4, 4)
    wrapper = nn.Sequential(model, nn.Linear(4, 4))
    flops, found = opened(model)
    wrapper(torch.randn(1, 4))
    flops.end_step()
    assert found == [3 * 2 * 16]


def test_recomputation_of_the_whole_model_is_not_counted_twice():
    model = nn.Linear(4, 4)
    flops, found = opened(model)
    checkpoint(model, torch.randn(2, 4), use_reentrant=False).sum().backward()
    flops.end_step()
    assert found == [3 * 2 * 2 * 16]


def test_error_in_forward():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.healthy = nn.Linear(4, 4), False

        def forward(self, x):
            x = self.linear(x)
            if not self.healthy:
                raise KeyError("theirs")
            return x

    model = Fails()
    flops, found = opened(model)
    with pytest.raises(KeyError, match="theirs"):
        model(torch.randn(2, 4))
    assert _get_current_dispatch_mode() is None
    model.healthy = True
    model(torch.randn(2, 4))
    assert flops.end_step() is None
    model(torch.randn(2, 4))
    flops.end_step()
    assert found == [3 * 2 * 2 * 16]


def test_interrupted_forward():
    """torch calls no hook after a KeyboardInterrupt."""

    class Interrupted(nn.Linear):
        healthy = False

        def forward(self, x):
            if not self.healthy:
                raise KeyboardInterrupt
            return super().forward(x)

    model = Interrupted(4, 4)
    flops, found = opened(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.randn(2, 4))
    model.healthy = True
    model(torch.randn(2, 4)).sum().backward()
    assert flops.end_step() is None
    assert _get_current_dispatch_mode() is None
    model(torch.randn(2, 4))
    flops.end_step()
    assert found == [3 * 2 * 2 * 16]


def test_error_of_ours(monkeypatch):
    from torchvitals.probes import flops as module

    def broken(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(module, "flops_of", broken)
    told = []
    model = nn.Linear(4, 4)
    flops = FlopCounter([model], boom, told.append)
    flops.open()
    flops.begin_step()
    assert model(torch.randn(2, 4)).shape == (2, 4)
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert flops.end_step() is None


def test_mode_left_open_by_others():
    class Theirs(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    theirs, told = Theirs(), []

    class Opens(nn.Linear):
        def forward(self, x):
            theirs.__enter__()
            return super().forward(x)

    model = Opens(4, 4)
    flops = FlopCounter([model], boom, told.append)
    flops.open()
    flops.begin_step()
    model(torch.randn(2, 4))
    assert "was not left" in str(told[0])
    assert _get_current_dispatch_mode() is theirs
    theirs.__exit__(None, None, None)
    # Ours is still below, but idle. Nobody else can take it away.
    ours = _get_current_dispatch_mode()
    assert isinstance(ours, Tally)
    before = ours.flops
    nn.Linear(4, 4)(torch.randn(2, 4))
    assert ours.flops == before
    ours.__exit__(None, None, None)


def test_two_counters_take_turns():
    model = nn.Linear(4, 4)
    (first, found), (second, found_too) = opened(model), opened(model)
    for _ in range(2):
        model(torch.randn(2, 4))
        first.end_step(), second.end_step()
    assert found == found_too == [3 * 2 * 2 * 16]


def test_under_a_mode_of_the_user():
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Linear(4, 4)
    with FlopCounterMode(display=False) as theirs:
        assert count(model, torch.randn(2, 4)) == 3 * 2 * 2 * 16
    assert theirs.get_total_flops() == 2 * 2 * 16


def test_nothing_to_count():
    assert count(nn.ReLU(), torch.randn(2, 4)) is None


def test_gives_up_waiting():
    flops, _ = opened(nn.Linear(4, 4))
    for _ in range(MAX_IDLE_STEPS):
        assert flops.end_step() is None
    # The fixture sees that the hooks are gone.


def test_close_in_the_middle():
    class Closes(nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            flops.close()
            return x

    model = Closes(4, 4)
    flops, found = opened(model)
    model(torch.randn(2, 4))
    flops.close()
    assert flops.end_step() is None
    assert found == []


def test_model_can_be_copied_and_saved_while_counted():
    model = GPT()
    flops, _ = opened(model)
    twin = copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    assert b"torchvitals" not in saved.getvalue()
    for module in (*model.modules(), *twin.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    twin(tokens())
    assert flops.end_step() is None
    model(tokens())
    assert flops.end_step() is not None
    copy.deepcopy(model)
    torch.save(model, io.BytesIO())


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def two_layers():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def test_tensor_parallel(mesh):
    """Operators on shards are counted where they are done, once."""
    model = two_layers()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert count(model, torch.randn(2, 8)) == 3 * 2 * 2 * 2 * 8 * 16


def test_sharded_parameters(mesh):
    model = two_layers()
    fully_shard(model, mesh=mesh)
    assert count(model, torch.randn(2, 8)) == 3 * 2 * 2 * 2 * 8 * 16


def test_distributed_data_parallel(mesh):
    model = two_layers()
    wrapper = nn.parallel.DistributedDataParallel(model)
    flops, found = opened(model)
    wrapper(torch.randn(2, 8)).sum().backward()
    flops.end_step()
    assert found == [3 * 2 * 2 * 2 * 8 * 16]


class Graphs:
    """A backend that counts what it is given to compile."""

    def __init__(self):
        self.compiled = 0

    def __call__(self, graph, _inputs):
        self.compiled += 1
        return graph.forward


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    return Graphs()


def test_compiled_models_are_not_counted(graphs):
    model = torch.compile(nn.Linear(4, 4), backend=graphs)
    in_place = nn.Linear(4, 4)
    in_place.compile(backend=graphs)
    partly = nn.Sequential(nn.ReLU(), torch.compile(nn.Linear(4, 4), backend=graphs))
    for compiled in (model, in_place, partly):
        flops, _ = counter(compiled)
        assert not flops.open()
        compiled(torch.randn(2, 4))
        assert flops.end_step() is None


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_after_opening(graphs, fullgraph):
    model = Plain()
    flops, found = counter(model)
    assert flops.open()
    compiled = torch.compile(model, backend=graphs, fullgraph=fullgraph)
    for _ in range(3):
        compiled(torch.randn(2, 4))
        flops.end_step()
        flops.begin_step()
    assert found == []
    assert graphs.compiled == 1


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")  # torch's, on the hooks
def test_compiled_while_counting(graphs):
    model = Plain()
    flops, found = opened(model)
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(2, 4))
        flops.end_step()
    assert found == []
    assert graphs.compiled == 1


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_in_place_after_opening(graphs, fullgraph):
    model = Plain()
    flops, found = opened(model)
    model.compile(backend=graphs, fullgraph=fullgraph)
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
        flops.end_step()
        flops.begin_step()
    assert found == []


@torch.compiler.disable
def not_compiled(x):
    return x


@torch.compile(backend="eager")
def compiled_function(x):
    return x.relu()


def calls_it(x):
    return compiled_function(x)


class Harmless(nn.Linear):
    def forward(self, x):
        return not_compiled(super().forward(x))


class Direct(nn.Linear):
    def forward(self, x):
        return compiled_function(super().forward(x))


class Indirect(nn.Linear):
    def forward(self, x):
        return [calls_it(row) for row in super().forward(x)]


class CompiledMethod(nn.Linear):
    @torch.compile(backend="eager")
    def forward(self, x):
        return super().forward(x)


def test_compiled_functions_are_found():
    holds = nn.Linear(4, 4)
    holds.activation = compiled_function
    for model in (Direct(4, 4), Indirect(4, 4), CompiledMethod(4, 4), holds):
        assert calls_compiled(nn.Sequential(model))
        assert not counter(model)[0].open()
    assert not calls_compiled(nn.Sequential(Harmless(4, 4), GPT()))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, on any such input
def test_compiled_functions_that_are_not_found_go_on_being_compiled(graphs):
    """Under torch's own FlopCounterMode this function would never be compiled again."""
    hidden = {"f": torch.compile(lambda x: x.relu() + 1, backend=graphs)}

    class Hides(nn.Linear):
        def forward(self, x):
            return hidden["f"](super().forward(x))

    model = Hides(4, 4)
    assert count(model, torch.randn(2, 4)) == 3 * 2 * 2 * 16
    assert graphs.compiled == 1
    model(torch.randn(2, 4))
    assert graphs.compiled == 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention():
    """Uncompiled, torch compiles it inside: under other dispatch modes that raises."""
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(nn.Module):
        def forward(self, q):
            return flex_attention(q, q, q)

    query = torch.randn(1, 2, 16, 8)
    plain = Flex()(query)
    flops, found = opened(model := Flex())
    assert torch.equal(model(query), plain)
    flops.end_step()
    assert found == [2 * 2 * 16 * 16 * (8 + 8)]
