"""Files of convolutional networks: bit for bit for every option; what does not fit is refused."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from conv_nets import OPTIONS, conv
from old_files import old_parts

import isthmus
from isthmus import FileFormatError, IsthmusError
from isthmus.networks._network import from_parts, to_parts
from tools import gaussian


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_round_trip(tmp_path, options, dtype):
    net = conv(**options, dtype=dtype)
    isthmus.save(net, tmp_path / "net.safetensors")
    state = torch.get_rng_state()
    back = isthmus.load(tmp_path / "net.safetensors")
    assert torch.equal(state, torch.get_rng_state())
    assert type(back) is isthmus.ConvolutionalNet and repr(back) == repr(net)
    assert list(back.state_dict()) == list(net.state_dict())
    for name, tensor in net.state_dict().items():
        same = back.state_dict()[name]
        assert same.dtype == dtype and torch.equal(same.view(torch.uint8), tensor.view(torch.uint8))
    X = gaussian(3, net.d_in, dtype=dtype)
    assert torch.equal(net(X), back(X)) and all(p.requires_grad for p in back.parameters())


def changed(old, **changes):
    """Parts of a good file with some of its configuration or tensors replaced; None takes a tensor away."""
    net = conv(head="mean", outputs=2, filter_size=3)
    config, tensors = old_parts(net)[1:] if old else to_parts(net)
    for key, value in changes.items():
        if key in config or key == "surplus":
            config[key] = value
        elif value is None:
            tensors.pop(key.replace("__", "."))
        else:
            tensors[key.replace("__", ".")] = value
    return config, tensors


ZEROS = torch.zeros(3, 2, 3, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surplus": 1}, "must have the keys"),
        ({"channels": [2, 3, 2]}, "`filter_size` must be one number, or 2"),
        ({"channels": [2, 4, 2, 1]}, r"tensor 'filters.0' must have shape \(4, 2, 3, 3\)"),
        ({"channels": [2, 3, 2, 2**60]}, r"`channels\[3\]`"),
        ({"channels": "2321"}, r"`channels\[0\]` must be an integer"),
        ({"channels": [2, True, 2, 1]}, r"`channels\[1\]`"),
        ({"size": []}, r"`size` must be n, \(n,\) or \(n, m\)"),
        ({"size": [4, 4, 4]}, r"`size` must be n, \(n,\) or \(n, m\)"),
        ({"size": [4.0, 4]}, "`size` must be an integer in .* Got float 4.0"),
        ({"size": [2, 2]}, r"`filter_size\[0\]` must be an integer in \[1, 2\]"),
        ({"size": [4]}, r"'filters.0' must have shape \(3, 2, 3\)"),
        ({"slope": 3}, "`slope`"),
        ({"bias": "1"}, "`bias`"),
        ({"bias": 0.0}, "'biases.0' too many"),
        ({"head": None}, "`outputs` must be given with a head, and only then"),
        ({"head": "max"}, "`head` must be one of"),
        ({"head": "flatten"}, r"'head_weight' must have shape \(2, 16\)"),
        ({"outputs": 10**12}, "`outputs`"),
        ({"outputs": 3}, r"'head_weight' must have shape \(3, 1\)"),
        ({"dtype": ["float64"]}, "`dtype` must be one of"),
        ({"dtype": "float32"}, "and dtype torch.float32"),
        ({"filters__0": ZEROS.float()}, "tensor 'filters.0'"),
        ({"filters__0": ZEROS[:2]}, "tensor 'filters.0'"),
        ({"head_bias": None}, "'head_bias' missing"),
        ({"filters__3": ZEROS}, "'filters.3' too many"),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_what_does_not_fit_is_refused(old, changes, message):
    with pytest.raises(IsthmusError, match=message):
        from_parts(isthmus.ConvolutionalNet, *changed(old, **changes))


@pytest.mark.parametrize(
    ("old", "changes", "message"),
    [
        (True, {"filter_sizes": [[3, 2], [3, 3], [3, 3]]}, "`filter_sizes` must be those of the images, or equal"),
        (True, {"filter_sizes": [[4, 4], [3, 3], [3, 3]]}, r"'filters.0' must have shape \(3, 2, 4, 4\)"),
        (True, {"filter_sizes": [[3], [3], []]}, "`filter_sizes` must be those of the images, or equal"),
        (True, {"filter_sizes": 3}, "`filter_sizes` must be a list"),
        (False, {"filter_size": [[3, 2], 3, 3]}, r"`filter_size\[0\]`"),
        (False, {"filter_size": [None, 3, 3]}, r"'filters.0' must have shape \(3, 2, 4, 4\)"),
        (False, {"filter_size": 3}, "must have the keys and values"),
        (False, {"filter_size": "3"}, "`filter_size"),
    ],
)
def test_sizes_of_filters_that_do_not_fit(old, changes, message):
    with pytest.raises(IsthmusError, match=message):
        from_parts(isthmus.ConvolutionalNet, *changed(old, **changes))


@pytest.mark.parametrize("old", [True, False])
def test_no_memory_for_a_hostile_size(old):
    wide = {"filter_sizes": [[2**20, 2**20]] * 3} if old else {"filter_size": [None] * 3}
    config, tensors = changed(old, size=[2**20, 2**20], **wide)
    tracemalloc.start()
    with pytest.raises(IsthmusError, match=r"'filters.0' must have shape"):
        from_parts(isthmus.ConvolutionalNet, config, tensors)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_a_good_file_and_a_broken_one(tmp_path):
    for old in (True, False):
        assert isinstance(from_parts(isthmus.ConvolutionalNet, *changed(old)), isthmus.ConvolutionalNet)
    net = conv()
    net.filters[0] = torch.nn.Parameter(torch.zeros(1, 2, 4, 4, dtype=torch.float64))
    with pytest.raises(IsthmusError, match="'filters.0'"):
        isthmus.save(net, tmp_path / "net.safetensors")
    isthmus.save(conv(), tmp_path / "net.safetensors")
    content = bytearray((tmp_path / "net.safetensors").read_bytes())
    content[-5] ^= 1
    (tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(FileFormatError):
        isthmus.load(tmp_path / "net.safetensors")
