"""Averages, outer sums and the two Kronecker attention operators."""

import importlib

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kronattn_mm.ops import axis_averages, dot_product_attention, outer_sum, use_backend
from kronattn_mm.ops.kronecker import averages_and_map

SHAPES = st.one_of(
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
)


def kao(x: torch.Tensor, mode: str) -> torch.Tensor:
    averages = axis_averages(x)
    if mode == 'kv':
        return dot_product_attention(x.flatten(2), averages, averages).reshape(x.shape)
    return outer_sum(dot_product_attention(averages, averages, averages), x.shape[2:])


def feature_map(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2), st.integers(1, 5), SHAPES)
def test_averages(batch, channels, shape):
    x = feature_map(batch, channels, *shape)
    wanted = np.stack([np.stack(reference.axis_averages(image), axis=1) for image in x.numpy()])
    assert axis_averages(x).shape == (batch, channels, sum(shape))
    np.testing.assert_allclose(axis_averages(x).numpy(), wanted, rtol=1e-12, atol=1e-14)


def test_width_block_comes_first():
    x = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert axis_averages(x).tolist() == [[[1.5, 2.5, 3.5, 1.0, 4.0]]]


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2), st.integers(1, 4), SHAPES)
def test_operators(mode, batch, channels, shape):
    x = feature_map(batch, channels, *shape)
    wanted = np.stack([reference.kronecker_attention(image, mode) for image in x.numpy()])
    error = np.abs(kao(x, mode).numpy() - wanted).max() / np.abs(wanted).max()
    assert error < 1e-12
    single = kao(x.float(), mode).double().numpy()
    assert np.abs(single - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
@pytest.mark.parametrize('shape', [(2, 3, 4, 3), (1, 2, 1, 3), (1, 2, 2, 3, 2)])
def test_gradcheck(mode, shape):
    x = feature_map(*shape).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kao(x, mode), x)


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_channels_commute(mode):
    x = feature_map(2, 5, 4, 6)
    order = torch.randperm(5)
    torch.testing.assert_close(kao(x[:, order], mode), kao(x, mode)[:, order])


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_rows_and_columns_are_not_swapped(mode):
    """What varies along one axis only keeps varying along that axis only."""
    along_width = feature_map(1, 3, 1, 6).expand(1, 3, 4, 6)
    out = kao(along_width, mode)
    torch.testing.assert_close(out, out[:, :, :1].expand_as(out))
    assert out.std(dim=3).min() > 0
    out = kao(along_width.transpose(2, 3), mode)
    torch.testing.assert_close(out, out[..., :1].expand_as(out))


@pytest.mark.parametrize('mode', ['kv', 'qkv'])
def test_transposed_input_gives_transposed_output(mode):
    x = feature_map(2, 3, 4, 6)
    torch.testing.assert_close(kao(x.transpose(2, 3), mode), kao(x, mode).transpose(2, 3))


def test_qkv_is_a_row_term_plus_a_column_term():
    """What KAO_QKV cannot represent: any mixed second difference of its output is zero."""
    y = kao(feature_map(2, 3, 5, 7), 'qkv')
    mixed = y[:, :, 1:, 1:] - y[:, :, :-1, 1:] - y[:, :, 1:, :-1] + y[:, :, :-1, :-1]
    torch.testing.assert_close(mixed, torch.zeros_like(mixed), atol=1e-13, rtol=0)


@settings(max_examples=30, deadline=None)
@given(SHAPES)
def test_outer_sum_of_averages(shape):
    """The average over the map of the outer sum is the sum of the blocks' averages."""
    x = feature_map(2, 3, *shape)
    total = outer_sum(axis_averages(x), shape)
    assert total.shape == x.shape
    torch.testing.assert_close(total.flatten(2).mean(-1), len(shape) * x.flatten(2).mean(-1))


@pytest.fixture(params=[None, 200], ids=['one-chunk', 'chunks'])
def chunk_bytes(request, monkeypatch):
    """Maps in one piece, and in chunks of a plane or two."""
    if request.param is not None:
        module = importlib.import_module('kronattn_mm.ops.kronecker')
        monkeypatch.setattr(module, '_CHUNK_BYTES', request.param)


def qkv_with_residual(x: torch.Tensor) -> torch.Tensor:
    averages, x = averages_and_map(x)
    attended = dot_product_attention(averages, averages, averages)
    return outer_sum(attended, x.shape[2:], x)


MAPS = [(2, 5, 4, 3), (1, 7, 1, 5), (2, 3, 2, 3, 2), (2, 3, 5)]


@pytest.mark.parametrize('shape', MAPS)
def test_planes_in_chunks_change_nothing(shape, chunk_bytes):
    x = feature_map(*shape)
    with use_backend('reference'):
        wanted = qkv_with_residual(x)
    assert torch.equal(qkv_with_residual(x), wanted), 'the same operations in the same order'
    assert torch.equal(qkv_with_residual(x.clone().requires_grad_()), wanted)
    if len(shape) == 4:
        other = x.contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(qkv_with_residual(other), wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize('shape', MAPS)
def test_gradients_of_planes_in_chunks(shape, chunk_bytes):
    x = feature_map(*shape).requires_grad_()
    assert torch.autograd.gradcheck(qkv_with_residual, x)
    assert torch.autograd.gradgradcheck(qkv_with_residual, x)
    # The averages alone, the map alone, and a gradient that is a broadcast.
    assert torch.autograd.gradcheck(axis_averages, x)
    assert torch.autograd.gradcheck(lambda x: averages_and_map(x)[1] ** 2, x)
    assert torch.autograd.gradcheck(lambda x: outer_sum(axis_averages(x), shape[2:]).sum(), x)

    single = x.detach().float().requires_grad_()
    weight = torch.randn(shape)
    (actual,) = torch.autograd.grad((qkv_with_residual(single) * weight).sum(), single)
    with use_backend('reference'):
        (wanted,) = torch.autograd.grad((qkv_with_residual(x) * weight.double()).sum(), x)
    assert (actual - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_nothing_of_the_size_of_the_map_is_kept_for_backward():
    x = torch.randn(2, 8, 20, 30, requires_grad=True)
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        qkv_with_residual(x).sum().backward()
    averages, coefficients = 4 * 2 * 8 * 50, 4 * 2 * 50 * 50
    assert sum(kept.values()) <= 2 * averages + coefficients < x.nbytes


@pytest.mark.parametrize('name', ['auto', 'torch', 'reference'])
@pytest.mark.parametrize('shape', [(2, 3, 0, 5), (0, 3, 4, 5), (2, 0, 4, 5)])
def test_empty_maps(name, shape):
    with use_backend(name):
        for x in (torch.zeros(shape), torch.zeros(shape, requires_grad=True)):
            assert kao(x, 'kv').shape == kao(x, 'qkv').shape == shape
            assert qkv_with_residual(x).shape == shape


def test_bad_input():
    with pytest.raises(TypeError, match='floating-point tensor, got torch.int64'):
        axis_averages(torch.zeros(1, 1, 2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match='got list'):
        axis_averages([1.0])
    with pytest.raises(ValueError, match=r'got shape \(3, 4\)'):
        axis_averages(torch.zeros(3, 4))
    with pytest.raises(
        ValueError,
        match=r'\(batch, channels, 5\) for a map of 2 x 3, '
        r'got \(1, 2, 6\)',
    ):
        outer_sum(torch.zeros(1, 2, 6), (2, 3))
    with pytest.raises(
        ValueError, match=r'residual must have the shape \(1, 2, 2, 3\), got \(1, 2'
    ):
        outer_sum(torch.zeros(1, 2, 5), (2, 3), torch.zeros(1, 2, 3, 2))
