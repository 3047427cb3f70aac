"""Kernels mixed for each image, and pointwise convolutions with a kernel for each image."""

import pytest
import torch
from torch.nn import functional

from kronattn_mm.ops import mix_kernels, pointwise_convolution_by_image, use_backend
from kronattn_mm.ops.mixed_conv import blend_in_turn, mix_in_turn, pointwise_convolution_of_one


@pytest.mark.parametrize('batch', [0, 1, 3])
@pytest.mark.parametrize('shape', [(5, 2, 3, 3), (7,)])
def test_mix_kernels(batch, shape):
    shares = torch.rand(batch, 4, dtype=torch.float64)
    kernels = list(torch.randn(4, *shape, dtype=torch.float64))
    wanted = torch.einsum('nk,k...->n...', shares, torch.stack(kernels))
    assert wanted.shape == (batch, *shape)
    for given in (kernels, torch.stack(kernels)):
        for recorded in (shares, shares.clone().requires_grad_()):
            mixed = mix_kernels(recorded, given)
            torch.testing.assert_close(mixed.detach(), wanted, rtol=1e-13, atol=1e-13)
            with use_backend('reference'):
                assert mix_kernels(recorded, given).shape == wanted.shape
    assert torch.equal(torch.stack(kernels), torch.stack([kernel.clone() for kernel in kernels]))


@pytest.mark.parametrize('batch', [1, 3])
def test_gradients_of_mixing(batch):
    shares = torch.rand(batch, 3, dtype=torch.float64, requires_grad=True)
    kernels = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(
        lambda shares, *kernels: mix_kernels(shares, kernels), (shares, *kernels)
    )


@pytest.mark.parametrize('batch', [1, 3])
def test_mixing_compiled(batch):
    shares, kernels = torch.rand(batch, 3), list(torch.randn(3, 2, 5))
    compiled = torch.compile(mix_kernels, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(shares, kernels), mix_kernels(shares, kernels))
    torch.compiler.reset()


def test_numbers_of_kernels_that_differ():
    with pytest.raises(ValueError, match=r'\(N, 3\) for 3 kernels, got \(2, 4\)'):
        mix_kernels(torch.rand(2, 4), torch.rand(3, 5))


@pytest.mark.parametrize('threads', [1, 2])
@pytest.mark.parametrize('batch', [0, 1, 3])
@pytest.mark.parametrize('with_bias', [True, False])
def test_pointwise_convolution(batch, with_bias, threads, monkeypatch):
    monkeypatch.setattr(torch, 'get_num_threads', lambda: threads)
    x = torch.randn(batch, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(batch, 2, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(batch, 2, dtype=torch.float64, requires_grad=True) if with_bias else None
    wanted = [
        functional.conv2d(image[None], weight[n], None if bias is None else bias[n])
        for n, image in enumerate(x)
    ]
    actual = pointwise_convolution_by_image(x, weight, bias)
    assert actual.shape == (batch, 2, 4, 5)
    if batch:
        torch.testing.assert_close(actual, torch.cat(wanted), rtol=1e-13, atol=1e-13)
        inputs = (x, weight) if bias is None else (x, weight, bias)
        run = pointwise_convolution_by_image
        function = run if with_bias else (lambda x, weight: run(x, weight, None))
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)
    half = [None if t is None else t.detach().bfloat16() for t in (x, weight, bias)]
    assert pointwise_convolution_by_image(*half).dtype == torch.bfloat16


@pytest.mark.parametrize('shares', [[0.5, 0.5], [0.1, 0.2, 0.3, 0.4], [0, 0, 1], [1, 0, 0], [0, 1]])
def test_shares_that_add_up_to_one(shares):
    kernels = torch.randn(len(shares), 3, 2, 3, 3, dtype=torch.float64)
    before = kernels.clone()
    wanted = torch.tensordot(torch.tensor(shares, dtype=torch.float64), kernels, dims=1)
    for mix in (mix_in_turn, blend_in_turn):
        torch.testing.assert_close(mix(shares, list(kernels)), wanted, rtol=1e-14, atol=1e-14)
    assert torch.equal(kernels, before), 'kernels are not written over'


@pytest.mark.parametrize('threads', [1, 2, 3])
@pytest.mark.parametrize('channels', [1, 4, 6])
@pytest.mark.parametrize('with_bias', [True, False])
@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
def test_pointwise_convolution_of_one(channels, with_bias, threads, memory_format, monkeypatch):
    monkeypatch.setattr(torch, 'get_num_threads', lambda: threads)
    x = torch.randn(1, 3, 4, 5, dtype=torch.float64).to(memory_format=memory_format)
    weight = torch.randn(channels, 3, 1, 1, dtype=torch.float64).to(memory_format=memory_format)
    bias = torch.randn(channels, dtype=torch.float64) if with_bias else None
    wanted = functional.conv2d(x, weight, bias)
    actual = pointwise_convolution_of_one(x, weight, bias)
    torch.testing.assert_close(actual, wanted, rtol=1e-13, atol=1e-13, check_stride=False)
    assert actual.is_contiguous(memory_format=memory_format)
