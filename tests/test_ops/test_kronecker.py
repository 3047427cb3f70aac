"""Averages, outer sums and the two Kronecker attention operators."""

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kronattn_mm.ops import axis_averages, dot_product_attention, outer_sum

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
