"""What stands beside the attended networks in their contests."""

import pytest
import torch
from torch import nn

from kronattn_mm.benchmark.contests import attended_convs
from kronattn_mm.cost.config import load_model
from kronattn_mm.layers.dynamic_conv import MixedConv
from kronattn_mm.ops import use_backend


@pytest.fixture(scope='module')
def networks():
    torch.manual_seed(0)
    names = {'static': 'static', 'dynamic': 'dyconv'}
    return {
        name: load_model(attended_convs._CONFIG.format(of_file))[0].eval()
        for name, of_file in names.items()
    }


def test_the_static_network_by_products_computes_the_same(networks, monkeypatch):
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 2)
    static = networks['static']
    x = torch.randn(2, 3, 96, 96)
    for module in static.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    static.train().extract_feat(x)  # statistics without which the signal dies away
    static.eval()
    products = attended_convs._by_products(static)
    with torch.inference_mode():
        wanted, actual = static.extract_feat(x), products.extract_feat(x)
        with use_backend('reference'):
            plain = products.extract_feat(x)
    replaced = [
        module for module in products.modules() if isinstance(module, attended_convs._ByProduct)
    ]
    assert len(replaced) == 34, 'the pointwise convolutions, that of the last layer included'
    for a, b, c in zip(actual, wanted, plain, strict=True):
        assert b.abs().max() > 0.01
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert torch.equal(c, b)
    with torch.profiler.profile() as profile, torch.inference_mode():
        products.extract_feat(x)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts['aten::baddbmm'] == 52 - counts['aten::conv2d'] > 0


def test_all_kernels_are_mixed_and_nothing_else(networks):
    mixed = attended_convs._mixing_alone(networks['dynamic'], 1)()
    convs = [module for module in networks['dynamic'].modules() if isinstance(module, MixedConv)]
    assert len(mixed) == len(convs) == 50
    for kernel, conv in zip(mixed, convs, strict=True):
        weights = [conv.weight, *(other.weight for other in conv.attention.kernels)]
        wanted = torch.stack(weights).mean(0)
        torch.testing.assert_close(kernel[0], wanted, rtol=1e-5, atol=1e-6)
