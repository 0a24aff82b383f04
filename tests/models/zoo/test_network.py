"""Every network of the table builds, runs, repeats itself, exports, leaves random state alone."""

import pytest
import torch

from anabranch.models.zoo import SIZES, ZOO

# Published where somebody published it (torchvision, timm, Keras, transformers), else pinned.
PARAMETERS = {
    "squeezenet": 1_248_424,
    "squeezenet_bypass": 1_589_672,  # pinned
    "googlenet": 6_624_904,
    "inception_v3": 23_834_568,
    "resnet50": 25_557_032,
    "resnext50": 25_028_904,
    "nasnet_large": 88_753_150,
    "nasnet_ios": 88_753_150,
    "nasnet_mobile": 5_289_978,
    "randwire": 5_503_282,  # pinned
    "randwire_ios": 61_385_988,  # pinned
    "bert_base": 109_482_240,
    "sru": 3_157_002,  # pinned
    "deepfm": 3_337_745,  # pinned
    "densenet121": 7_978_856,
    "mobilenet_v2": 3_504_872,
    "gpt2": 124_439_808,
    "lstm": 4_207_626,  # pinned
    "gru": 3_157_002,  # pinned
    "attention_rnn": 4_738_058,  # pinned
    "mlp": 4_199_425,  # pinned
    "dlrm": 17_418_817,  # pinned
    "t5": 222_903_552,
    "deepspeech2": 41_187_968,  # pinned
    "nasnet_cell": 650_832,  # pinned
}

# Entries of the state dict of the implementation whose weights load.
ENTRIES = {
    "squeezenet": 52,
    "googlenet": 344,
    "inception_v3": 566,
    "resnet50": 320,
    "resnext50": 320,
    "nasnet_large": 1810,
    "bert_base": 199,
    "densenet121": 727,
    "mobilenet_v2": 314,
    "gpt2": 148,
    "t5": 257,
}

NAMES = sorted(ZOO)


def outputs(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        found = model(*inputs)
    return found if isinstance(found, tuple) else (found,)


def test_table_names_match() -> None:
    assert all(name == network.name for name, network in ZOO.items())
    assert set(PARAMETERS) == set(ZOO)
    assert SIZES == ("paper", "tiny")


@pytest.mark.parametrize("name", NAMES)
def test_tiny_runs_and_repeats(name: str) -> None:
    """And neither reads nor moves the global random state; a batch of two are different answers."""
    network = ZOO[name]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    model, inputs = network.build("tiny"), network.inputs("tiny", 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert not any(module.training for module in model.modules())
    first = outputs(model, inputs)
    for y in outputs(model, network.inputs("tiny", 2)):
        assert y.shape[0] == 2
        assert not torch.equal(y[0], y[1])
    other, other_inputs = network.build("tiny"), network.inputs("tiny", 1)
    state, others = model.state_dict(), other.state_dict()
    assert state.keys() == others.keys()
    for key, value in state.items():
        assert torch.equal(value, others[key]), key
    assert all(torch.equal(a, b) for a, b in zip(inputs, other_inputs, strict=True))
    again = outputs(other, other_inputs)
    for a, b in zip(first, again, strict=True):
        assert torch.isfinite(a).all()
        assert a.numel() == 1 or a.std() > 1e-3
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_paper_size_has_the_published_parameters_and_runs_on_meta(name: str) -> None:
    network = ZOO[name]
    with torch.device("meta"):
        model = network.build("paper")
    assert all(p.is_meta for p in model.parameters())
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert len(model.state_dict()) == ENTRIES.get(name, len(model.state_dict()))
    inputs = network.inputs("paper", 1)
    assert all(x.device.type == "cpu" for x in inputs)
    found = outputs(model, tuple(x.to("meta") for x in inputs))
    assert all(y.shape[0] == 1 for y in found)


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(KeyError):
        ZOO["sru"].build("huge")
