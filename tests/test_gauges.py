"""Gauges give what is worked out by hand, find weights wherever they are held, and leave an encoder as it was."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from builders import Noisy
from torch import nn

from evalharness.gauges import PeakMemory, find_weights, leaving_no_trace, measure_flops, measure_parameters, take_items
from evalharness.types import AudioBatch


def parameters(model):
    return tuple(measure_parameters(find_weights(model))[0].values())


def test_a_linear_network_has_the_parameters_and_operations_worked_out_by_hand():
    net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    assert measure_flops(net, torch.randn(32, 128)) == 565248
    assert parameters(net) == (8906, 8906, 0)


def test_a_convolution_counts_its_products_and_not_its_bias():
    assert measure_flops(nn.Conv2d(3, 8, 3, padding=1), torch.randn(2, 3, 16, 16)) == 221184


def test_a_backward_pass_counts_twice_and_once_where_the_input_needs_no_gradient():
    net, batch = nn.Linear(128, 64), torch.randn(32, 128)

    def train(rows, needed):
        with torch.enable_grad():
            net(rows.detach().requires_grad_(needed)).sum().backward()

    forward = measure_flops(net, batch)
    assert measure_flops(lambda rows: train(rows, True), batch) == 3 * forward
    assert measure_flops(lambda rows: train(rows, False), batch) == 2 * forward


def test_attention_counts_although_its_fused_kernel_would_not():
    queries = torch.randn(2, 4, 16, 32)

    assert measure_flops(lambda batch: nn.functional.scaled_dot_product_attention(batch, batch, batch), queries) == 262144


def test_fused_transformer_and_recurrent_layers_count():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    products = 2 * 20 * 64 * (4 * 64 + 2 * 128) + 2 * (2 * 4 * 10 * 10 * 16 * 2)
    assert measure_flops(layer, torch.randn(2, 10, 64)) == products

    network = nn.LSTM(40, 32, 2, batch_first=True).eval()
    assert measure_flops(network, torch.randn(2, 50, 40)) == 2 * 2 * 50 * 4 * 32 * (40 + 32 + 32 + 32)


def test_operations_are_those_that_the_counter_of_torch_finds():
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, groups=3), nn.BatchNorm2d(6), nn.GELU(), nn.Flatten(), nn.Linear(294, 5)).eval()
    batch = torch.randn(2, 3, 16, 16)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(batch)

    assert measure_flops(net, batch) == counter.get_total_flops() > 0


def test_counting_imports_no_compiler():
    code = (
        "import sys, torch; from evalharness.gauges import measure_flops\n"
        "print(measure_flops(torch.nn.Linear(2, 3), torch.ones(1, 2)), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["12", "False"]


def test_counting_leaves_backend_flags_as_they_were():
    backends = torch.backends
    before = backends.mkldnn.enabled, backends.cudnn.enabled, backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()

    def fail(batch):
        raise ValueError

    with pytest.raises(ValueError):
        measure_flops(fail, torch.ones(1))

    assert before == (
        backends.mkldnn.enabled,
        backends.cudnn.enabled,
        backends.mha.get_fastpath_enabled(),
        backends.cuda.flash_sdp_enabled(),
    )


def test_shared_parameters_count_once_and_frozen_ones_are_not_trainable():
    net = nn.ModuleDict({"table": nn.Embedding(50, 8), "out": nn.Linear(8, 50, bias=False), "turned": nn.Linear(50, 8, bias=False)})
    net["out"].weight = net["table"].weight
    net["turned"].weight = nn.Parameter(net["table"].weight.detach().t())
    assert parameters(net) == (400, 400, 400)

    net["frozen"] = nn.Linear(8, 2).requires_grad_(requires_grad=False)
    assert parameters(net) == (418, 400, 400)


SHARED = nn.Linear(4, 3)


class Holder:
    def __init__(self, **held):
        self.__dict__ |= held

    def embed(self, batch):
        return batch


def hidden_in_a_closure():
    model = nn.Linear(4, 3)
    return lambda batch: model(batch) + 1


@pytest.mark.parametrize(
    "encoder",
    [
        nn.Linear(4, 3),
        Holder(model=nn.Linear(4, 3)),
        Holder(wrapped=Holder(models=[nn.Linear(4, 3)])),
        Holder(towers={"image": nn.Linear(4, 3)}),
        Holder(function=hidden_in_a_closure()),
        Holder(function=lambda batch: SHARED(batch) + 1),
        Holder(function=partial(nn.functional.linear, weight=nn.Linear(4, 3))),
        Holder(function=Holder(model=nn.Linear(4, 3)).embed),
    ],
    ids=["itself", "attribute", "two deep", "mapping", "closure", "global", "partial", "bound method"],
)
def test_modules_are_found_behind_an_encoder(encoder):
    assert parameters(encoder) == (15, 15, 0)


def test_the_search_for_weights_ends():
    ring = Holder(names=list(range(100_000)))
    ring.self = ring

    assert find_weights(ring).modules == []


def test_bare_matrices_count_and_what_cannot_be_said_of_them_is_none_with_a_reason():
    facts, reasons = measure_parameters(find_weights(Holder(model=Holder(embedding=np.zeros((100, 4), np.float32), mean=np.zeros(4)))))
    assert facts == {"parameters": 400, "parameters_trainable": None, "parameters_embedding": None}
    assert set(reasons) == {"parameters_trainable", "parameters_embedding"}

    facts, reasons = measure_parameters(find_weights(Holder(first=torch.zeros(3, 2), ids=torch.zeros(9, 9, dtype=torch.int64))))
    assert facts == {"parameters": 6, "parameters_trainable": 0, "parameters_embedding": None}
    assert set(reasons) == {"parameters_embedding"}


def test_one_more_call_leaves_no_trace_in_an_encoder():
    encoder, twin = Noisy(), Noisy()
    batch = torch.randn(6, 8)
    torch.manual_seed(5)
    np.random.seed(5)
    with leaving_no_trace(find_weights(encoder)):
        encoder.encode(batch)
    first = encoder.encode(batch)

    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(first, twin.encode(batch))
    assert torch.equal(encoder.norm.running_mean, twin.norm.running_mean)
    assert encoder.calls == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is reset on Linux only")
def test_the_peak_of_a_process_is_that_since_the_start():
    memory = PeakMemory(torch.device("cpu"))
    large = np.ones(40_000_000)
    del large
    memory.start()
    low, _ = memory.read()
    large = np.ones(20_000_000)
    del large
    high, _ = memory.read()

    assert memory.kind == "process-resident"
    assert 140e6 < high - low < 240e6


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is reset on Linux only")
def test_in_a_program_of_another_the_peak_is_known_only_where_it_rises():
    large = np.ones(20_000_000)
    del large
    memory = PeakMemory(torch.device("cpu"), reset=False)
    memory.start()

    assert memory.read() == (None, "the program had a higher peak before, which is not reset")


def test_a_device_without_a_peak_has_none_and_says_why():
    memory = PeakMemory(torch.device("meta"))
    memory.start()

    peak, reason = memory.read()
    assert peak is None
    assert "meta" in reason


def test_middle_items_are_copied_whatever_a_batch_is():
    batch = torch.arange(10.0)[:, None]
    sample = take_items(batch)
    batch += 100

    assert sample.flatten().tolist() == [4, 5]
    assert take_items(["a", "b", "c", "d", "e"]) == ["b", "c"]
    assert take_items(["a"]) == ["a"]
    audio = take_items(AudioBatch(waveforms=torch.ones(4, 7), lengths=torch.arange(4), sample_rate=16000))
    assert (audio.waveforms.shape, audio.lengths.tolist()) == ((2, 7), [1, 2])
