"""watch(attention=True) on models of transformers, against the weights their eager code returns."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import torchvitals

VOCABULARY, HEADS, LAYERS = 64, 4, 2
COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1}


def gpt2():
    config = GPT2Config(
        **COMMON, n_positions=32, n_embd=32, n_layer=LAYERS, n_head=HEADS, loss_type="ForCausalLM"
    )
    return GPT2LMHeadModel(config), "transformer.h.{}.attn"


def llama():
    """Two query heads share a key head."""
    config = LlamaConfig(
        **COMMON,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
    )
    return LlamaForCausalLM(config), "model.layers.{}.self_attn"


def bert():
    config = BertConfig(
        **COMMON,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    return BertForMaskedLM(config), "bert.encoder.layer.{}.attention.self"


@pytest.mark.parametrize("make", [gpt2, llama, bert])
def test_entropies_are_those_of_the_weights_that_eager_attention_returns(tmp_path, make):
    torch.manual_seed(0)
    model, name = make()
    assert model.config._attn_implementation == "sdpa"
    for parameter in model.parameters():  # far from uniform attention
        if parameter.dim() == 2:
            parameter.data.mul_(8)
    dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    for module in dropouts:
        module.p = 0.0
    tokens = torch.randint(0, VOCABULARY, (2, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, attention=True):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(input_ids=tokens, output_attentions=True).attentions
    with torchvitals.open_run(tmp_path / "run") as history:
        row = history.row(1)
        assert len(history.keys("attention", stat="entropy")) == LAYERS * HEADS
    for layer, weights in enumerate(layers):
        p = weights.double()
        entropy = -(p * p.clamp_min(1e-300).log()).sum(-1).mean(dim=(0, 2))
        for head in range(HEADS):
            key = torchvitals.Key("attention", f"{name.format(layer)}.head_{head}", "entropy")
            assert row[key] == pytest.approx(float(entropy[head]), rel=1e-3)
