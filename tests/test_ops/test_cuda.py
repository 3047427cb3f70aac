"""Every layer under autocast, on the CPU and on a GPU where there is one; the kernels on a GPU.

Needs torch, triton, numpy and pytest. The test suite hides GPUs, so that it is the same everywhere;
on a machine with one:

    CUDA_VISIBLE_DEVICES=0 python -m pytest tests/test_ops/test_cuda.py
"""

import copy
import inspect
import logging

import pytest
import torch
from torch import nn

from kronattn_mm import layers
from kronattn_mm.layers import EfficientAttention2d
from kronattn_mm.ops import axis_averages, dot_product_attention, efficient_attention, use_backend
from kronattn_mm.ops.projections import Projections
from kronattn_mm.ops.tiled import tiled_attention
from kronattn_mm.ops.triton.availability import why_not
from kronattn_mm.ops.triton.block import block

on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason='no CUDA device (CUDA_VISIBLE_DEVICES=0 shows the first)'
)
DEVICES = ['cpu', pytest.param('cuda', marks=on_gpu)]
HALF = [torch.bfloat16, torch.float16]
ARGUMENTS = {'LatentGNN2d': dict(latent_channels=6)}
# Layers that gather over all positions of a large map and are not quadratic in them.
GLOBAL = {
    'CGNL2d': {},
    'EfficientAttention2d': {},
    'KroneckerAttention2d': dict(mode='qkv'),
    'LatentGNN2d': {},
    'ShiftBalance2d': {},
    'SqueezeExcite2d': {},
}


def build(name, **changes):
    """A layer whose output differs from its input, for 16 channels."""
    cls = getattr(layers, name)
    arguments = {**ARGUMENTS.get(name, {}), **changes}
    if name.endswith('Conv2d'):
        arguments = dict(out_channels=16, kernel_size=3, padding=1, **arguments)
    if 'zero_init' in inspect.signature(cls).parameters:
        arguments['zero_init'] = False
    torch.manual_seed(0)
    layer = cls(16, **arguments).eval()  # statistics of batches are no matter of precision
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.3)
    return layer


def input_of(name, *shape):
    dims = 1 if name.endswith('1d') else 3 if name.endswith('3d') else 2
    return torch.randn(2, 16, *(shape or (5, 7, 4)[:dims]))


def step(layer, x, gradient):
    """Output and gradients, by name, in float64 on the CPU."""
    layer, x = copy.deepcopy(layer), x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(gradient.to(y))
    results = {'output': y.detach(), 'input': x.grad}
    results |= {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {name: tensor.double().cpu() for name, tensor in results.items() if tensor is not None}


def assert_close(actual, wanted, tolerance):
    # A gradient that cancels, such as that of the keys' bias, is measured against the others.
    least = max(float(theirs.abs().max()) for theirs in wanted.values()) / 10
    for name, theirs in wanted.items():
        error = (actual[name] - theirs).abs().max()
        scale = theirs.abs().max().clamp_min(least)
        assert error <= tolerance * scale, (name, float(error / scale))


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', layers.__all__)
def test_layers_under_autocast(name, dtype, device):
    layer, x = build(name), input_of(name)
    gradient = torch.randn(x.shape)
    wanted = step(layer.double(), x.double(), gradient.double())
    layer, x = layer.float().to(device), x.to(device)
    with torch.autocast(device, dtype):
        actual = step(layer, x, gradient.to(device))
    assert actual['output'].isfinite().all()
    # Eight roundings of half the last digit, relative to the largest number.
    assert_close(actual, {'output': wanted['output']}, 8 * torch.finfo(dtype).eps)
    gradients = {name: tensor for name, tensor in wanted.items() if name != 'output'}
    # LatentGNN divides by lengths three times in a row
    tolerance = 64 if name == 'LatentGNN2d' else 32
    assert_close(actual, gradients, tolerance * torch.finfo(dtype).eps)


@pytest.mark.slow
@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('autocast', [False, True])
@pytest.mark.parametrize('name', GLOBAL)
def test_sums_over_many_positions_in_float16(name, autocast, device):
    """More than 65,504 positions of numbers around one: a sum of them leaves float16's range."""
    layer = build(name, **GLOBAL[name])
    x = input_of(name, 224, 320)[:1].add(1)
    with torch.no_grad():
        wanted = layer(x).to(device)
        layer = (layer if autocast else layer.half()).to(device)
        x = (x if autocast else x.half()).to(device)
        with torch.autocast(device, torch.float16, enabled=autocast):
            actual = layer(x)
    assert actual.isfinite().all()
    assert (actual - wanted).abs().max() < 2e-2 * wanted.abs().max()


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('dtype', HALF)
def test_operators_in_half_precision(dtype, device):
    query, key, value = (torch.randn(2, 8, 300).to(dtype) for _ in range(3))
    for operator in (efficient_attention, dot_product_attention):
        for normalization in ('softmax', 'scaling'):
            wanted = operator(query.double(), key.double(), value.double(), normalization)
            with torch.autocast(device, dtype):
                actual = operator(*[t.to(device) for t in (query, key, value)], normalization)
            assert actual.dtype == dtype
            error = (actual.double().cpu() - wanted).abs().max()
            assert error <= torch.finfo(dtype).eps * wanted.abs().max()
    x = torch.randn(1, 3, 300, 400).add(2).to(dtype)
    averages = axis_averages(x.to(device)).double().cpu()
    assert (averages - axis_averages(x.double())).abs().max() <= 2 * torch.finfo(dtype).eps * 2


@pytest.mark.parametrize(
    ('form', 'device'),
    [('tiled', 'cpu'), *[pytest.param(form, 'cuda', marks=on_gpu) for form in ('tiled', 'triton')]],
)
def test_backward_inside_an_autocast_region(form, device):
    """A forward pass in float32 has float32 gradients, wherever its backward pass is called."""
    layer, x = build('EfficientAttention2d'), input_of('EfficientAttention2d', 20, 30)
    gradient = torch.randn(x.shape)
    with use_backend('reference'):
        wanted = step(copy.deepcopy(layer).double(), x.double(), gradient.double())
    layer, x = layer.to(device), x.to(device).requires_grad_()
    convs = layer.keys, layer.queries, layer.values, layer.reprojection
    weights = Projections(*[t for conv in convs for t in (conv.weight.flatten(1), conv.bias)])
    if form == 'tiled':
        y = tiled_attention(x, weights, 1, 'softmax', tile=100)
    else:
        y = block(x, weights, 1, 'softmax', torch.float32)
    with torch.autocast(device, torch.bfloat16):
        y.backward(gradient.to(device))
    actual = {'input': x.grad.double().cpu()}
    actual |= {
        name: p.grad.double().cpu() for name, p in layer.named_parameters() if p.numel() > 64
    }
    assert_close(actual, {name: wanted[name] for name in actual}, 1e-4)


@pytest.mark.parametrize('device', DEVICES)
def test_scaled_gradients_in_float16(device):
    """A loss times 2^16 brings no overflow of its own, and the gradients are right again after."""
    layer, x = build('EfficientAttention2d'), input_of('EfficientAttention2d', 20, 30)
    gradient = torch.randn(x.shape) / x.numel()
    wanted = step(layer.double(), x.double(), gradient.double())
    layer, x = layer.float().to(device), x.to(device)
    with torch.autocast(device, torch.float16):
        actual = step(layer, x, gradient.to(device) * 2**16)
    for name in actual:
        if name != 'output':
            actual[name] /= 2**16
            wanted[name], actual[name] = wanted[name] * x.numel(), actual[name] * x.numel()
    assert_close(actual, wanted, 32 * torch.finfo(torch.float16).eps)


# -- the kernels, on a GPU ---------------------------------------------------------------------

# channels, key channels, value channels, heads, spatial shape
SIZES = [
    (256, 64, 64, 1, (56, 80)),
    (256, 64, 64, 8, (25, 33)),
    (70, 15, 12, 3, (5, 9)),
    (130, 128, 100, 1, (40, 41)),
    (16, 1, 1, 1, (1, 1)),
    (256, 64, 64, 1, (224, 320)),
]


@on_gpu
class TestTriton:
    def layer(self, size, normalization='softmax'):
        *channels, _ = size
        torch.manual_seed(0)
        layer = EfficientAttention2d(*channels, normalization, zero_init=False)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.normal_(std=parameter[0].numel() ** -0.5)
        return layer.cuda()

    def errors(self, layer, x, gradient, backend, wanted):
        with use_backend(backend):
            actual = step(layer, x, gradient)
        return {
            name: float((actual[name] - theirs).abs().max() / theirs.abs().max().clamp_min(1e-2))
            for name, theirs in wanted.items()
        }

    @pytest.mark.parametrize('channels_last', [False, True])
    @pytest.mark.parametrize('normalization', ['softmax', 'scaling'])
    @pytest.mark.parametrize('dtype', [torch.float32, *HALF])
    @pytest.mark.parametrize('size', SIZES)
    def test_no_worse_than_plain(self, size, dtype, normalization, channels_last):
        layer = self.layer(size, normalization).to(dtype)
        x = torch.randn(2, size[0], *size[-1], device='cuda', dtype=dtype)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        gradient = torch.randn_like(x)
        with use_backend('reference'):
            wanted = step(copy.deepcopy(layer).double(), x.double(), gradient.double())
        ours = self.errors(layer, x, gradient, 'triton', wanted)
        if dtype == torch.float32:
            assert max(ours.values()) < 1e-4, ours
            return
        plain = self.errors(layer, x, gradient, 'reference', wanted)
        floor = torch.finfo(dtype).eps / 2  # the rounding of a result
        worse = {n: (ours[n], plain[n]) for n in ours if ours[n] > 2 * max(plain[n], floor)}
        assert not worse

    def test_auto_takes_the_kernels(self, caplog, monkeypatch):
        monkeypatch.setattr('kronattn_mm.ops.backend._told', set())
        caplog.set_level(logging.INFO, 'kronattn_mm')
        layer, x = self.layer(SIZES[0]), torch.randn(1, 256, 56, 80, device='cuda')
        assert why_not(x, {x.dtype}, 64, 64, 1, trial=True) is None
        layer(x)
        assert 'EfficientAttention2d on cuda: triton' in caplog.text

    @pytest.mark.parametrize('dtype', HALF)
    def test_launches_and_memory(self, dtype):
        from torch.profiler import ProfilerActivity, profile

        layer = self.layer(SIZES[0]).to(dtype)
        x = torch.randn(1, 256, 224, 320, device='cuda', dtype=dtype, requires_grad=True)
        gradient = torch.randn_like(x)
        size = x.numel() * x.element_size()

        def call():
            with use_backend('triton'):
                y = layer(x)
            return y

        call().backward(gradient)  # compiles
        x.grad = None
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            y = call()
            y.backward(gradient)
            torch.cuda.synchronize()
        counts = {event.key: event.count for event in profiler.key_averages()}
        for kernel in ('gather', 'merge', 'write', 'query_side', 'key_side'):
            assert sum(n for key, n in counts.items() if key.split('(')[0] == kernel) == 1, counts
        del y
        x.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            call()
        assert torch.cuda.max_memory_allocated() - before < 1.25 * size

    def test_runs_repeat_bit_for_bit(self):
        layer, x = self.layer(SIZES[0]), torch.randn(1, 256, 56, 80, device='cuda')
        gradient = torch.randn_like(x)
        with use_backend('triton'):
            first, second = step(layer, x, gradient), step(layer, x, gradient)
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_in_a_cuda_graph(self):
        layer, x = self.layer(SIZES[0]), torch.randn(1, 256, 56, 80, device='cuda')
        with torch.no_grad(), use_backend('triton'):
            wanted = layer(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x)
            y.zero_()
            graph.replay()
            torch.cuda.synchronize()
        assert torch.equal(y, wanted)

    def test_without_biases(self):
        layer, x = self.layer(SIZES[1]), torch.randn(1, 256, 25, 33, device='cuda')
        convs = layer.keys, layer.queries, layer.values, layer.reprojection
        weights = [t for conv in convs for t in (conv.weight.detach().flatten(1), None)]
        actual = block(x, Projections(*weights), 8, 'softmax', torch.float32)
        for conv in convs:
            nn.init.zeros_(conv.bias)
        with use_backend('reference'):
            wanted = layer.double()(x.double())
        assert (actual - wanted).abs().max() < 1e-4 * wanted.abs().max()
