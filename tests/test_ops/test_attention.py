"""The attention operators against the equations, and the properties the paper proves."""

import functools
import importlib

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kronattn_mm.ops import dot_product_attention, efficient_attention, template_maps, use_backend

OPERATORS = {
    efficient_attention: reference.efficient_attention,
    dot_product_attention: reference.dot_product_attention,
}
both_operators = pytest.mark.parametrize('operator', OPERATORS, ids=lambda f: f.__name__)
both_normalizations = pytest.mark.parametrize('normalization', ['softmax', 'scaling'])


def inputs(
    d_k: int,
    d_v: int,
    m: int,
    n: int,
    leading: tuple[int, ...] = (),
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, ...]:
    return tuple(
        (scale * torch.randn(*leading, *shape, dtype=torch.float64)).to(dtype)
        for shape in ((d_k, m), (d_k, n), (d_v, n))
    )


def expected(operator, query, key, value, normalization) -> np.ndarray:
    function = OPERATORS[operator]
    rows = (tensor.double().numpy().swapaxes(-1, -2) for tensor in (query, key, value))
    return function(*rows, normalization).swapaxes(-1, -2)


def relative_error(actual: torch.Tensor, wanted: np.ndarray) -> float:
    return float(np.abs(actual.double().numpy() - wanted).max() / np.abs(wanted).max())


@both_operators
@both_normalizations
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([0.1, 1.0, 30.0]),
)
def test_equations(operator, normalization, d_k, d_v, m, n, scale):
    data = inputs(d_k, d_v, m, n, scale=scale)
    wanted = expected(operator, *data, normalization)
    assert relative_error(operator(*data, normalization), wanted) < 1e-12
    single = operator(*(tensor.float() for tensor in data), normalization)
    rounded = expected(operator, *(tensor.float() for tensor in data), normalization)
    assert single.dtype == torch.float32
    # Rounding in an exponent is amplified by its size, so the bar is for the usual range.
    assert relative_error(single, rounded) < (1e-5 if scale <= 1 else 1e-2)


@both_operators
@both_normalizations
def test_leading_dimensions_are_independent(operator, normalization):
    data = inputs(3, 4, 5, 6, leading=(2, 3))
    batched = operator(*data, normalization)
    assert batched.shape == (2, 3, 4, 5)
    for i in range(2):
        for j in range(3):
            alone = operator(*(tensor[i, j] for tensor in data), normalization)
            torch.testing.assert_close(batched[i, j], alone, rtol=1e-13, atol=1e-13)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 40), st.integers(1, 40))
def test_equal_under_scaling(d_k, d_v, m, n):
    """Section 3.3: with scaling, efficient and dot-product attention are the same function."""
    data = inputs(d_k, d_v, m, n)
    torch.testing.assert_close(
        efficient_attention(*data, 'scaling'),
        dot_product_attention(*data, 'scaling'),
        rtol=1e-12,
        atol=1e-13,
    )


def test_softmax_similarities_are_distributions():
    """Section 3.3: each query's implied similarities are positive and sum to one."""
    query, key, _ = inputs(5, 1, 7, 11, scale=3.0)
    similarity = efficient_attention(query, key, torch.eye(11, dtype=torch.float64))
    assert (similarity >= 0).all()
    torch.testing.assert_close(similarity.sum(0), torch.ones(7, dtype=torch.float64))


def test_softmax_result_is_a_mix_of_values():
    query, key, value = inputs(5, 3, 7, 11, scale=10.0)
    attended = efficient_attention(query, key, value)
    low, high = value.amin(-1, keepdim=True), value.amax(-1, keepdim=True)
    assert (attended >= low - 1e-12).all() and (attended <= high + 1e-12).all()


def test_template_maps_sum_to_one():
    maps = template_maps(torch.randn(2, 4, 33, dtype=torch.float64))
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    half = template_maps(torch.randn(4, 60000).half())
    torch.testing.assert_close(half.sum(-1), torch.ones(4))
    scaled = template_maps(torch.ones(1, 16), 'scaling')
    torch.testing.assert_close(scaled, torch.full((1, 16), 0.25))


@both_operators
@both_normalizations
def test_gradcheck(operator, normalization):
    data = [tensor.requires_grad_() for tensor in inputs(3, 2, 4, 5)]
    assert torch.autograd.gradcheck(lambda q, k, v: operator(q, k, v, normalization), data)


@both_operators
@both_normalizations
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(operator, normalization, dtype):
    data = inputs(8, 8, 16, 500, dtype=dtype)
    actual = operator(*data, normalization)
    assert actual.dtype == dtype
    # Only the result is rounded: the error is at most that of writing down the exact result.
    assert relative_error(actual, expected(operator, *data, normalization)) < torch.finfo(dtype).eps


@both_normalizations
@pytest.mark.parametrize('autocast', [False, True])
def test_float16_range_at_high_resolution(normalization, autocast):
    """Values near 20 at 200 x 304: an unnormalised sum over the positions would be infinite."""
    n = 200 * 304
    query, key, value = (
        20 + torch.randn(channels, n, dtype=torch.float64) for channels in (4, 4, 3)
    )
    query = query * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]  # keeps the result in range
    data = [tensor.half() for tensor in (query, key, value)]
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
        actual = efficient_attention(*data, normalization)
    wanted = efficient_attention(*(tensor.double() for tensor in data), normalization)
    assert torch.isfinite(actual).all()
    assert relative_error(actual, wanted.numpy()) < torch.finfo(torch.float16).eps


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __enter__(self):
        self.count = 0
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.mm)
        return function(*args, **(kwargs or {}))


@both_normalizations
@pytest.mark.parametrize('leading', [(), (2,), (2, 3)])
def test_queries_in_turns_change_nothing(normalization, leading, monkeypatch):
    """In inference on a CPU large similarities are computed a block of queries at a time."""
    from kronattn_mm.ops import dot_product_attention as function

    module = importlib.import_module('kronattn_mm.ops.dot_product_attention')
    data = inputs(3, 4, 100, 50, leading=leading)
    whole = function(*(tensor.clone().requires_grad_() for tensor in data), normalization)
    monkeypatch.setattr(module, '_bytes_at_once', lambda: 50 * 8 * 30)
    with Products() as products:
        parts = function(*data, normalization)
    assert products.count > 2 * 3
    torch.testing.assert_close(parts, whole.detach(), rtol=1e-13, atol=1e-13)
    with use_backend('reference'), Products() as products:
        function(*data, normalization)
    assert products.count == 2

    recorded = [tensor.clone().requires_grad_() for tensor in data]
    run = functools.partial(function, normalization=normalization)
    torch.testing.assert_close(run(*recorded), whole.detach(), rtol=1e-13, atol=1e-13)
    weight = torch.randn_like(whole)
    actual = torch.autograd.grad((run(*recorded) * weight).sum(), recorded)
    with use_backend('reference'):
        wanted = torch.autograd.grad((run(*recorded) * weight).sum(), recorded)
    for ours, reference_ in zip(actual, wanted, strict=True):
        torch.testing.assert_close(ours, reference_, rtol=1e-11, atol=1e-12)


@both_normalizations
def test_gradients_in_turns(normalization, monkeypatch):
    module = importlib.import_module('kronattn_mm.ops.dot_product_attention')
    monkeypatch.setattr(module, '_bytes_at_once', lambda: 0)  # sixteen queries, the fewest
    run = functools.partial(dot_product_attention, normalization=normalization)
    query, key, value = (tensor.requires_grad_() for tensor in inputs(2, 3, 19, 4, leading=(2,)))
    assert torch.autograd.gradcheck(run, (query, key, value))
    assert torch.autograd.gradgradcheck(run, (query, key, value))
    # A gradient for some of the inputs, and one tensor that is key and value.
    assert torch.autograd.gradcheck(lambda key: run(query.detach(), key, value.detach()), key)
    assert torch.autograd.gradgradcheck(lambda key: run(query.detach(), key, value.detach()), key)
    assert torch.autograd.gradcheck(lambda shared: run(query.detach(), shared, shared), key)


def test_training_keeps_no_similarities(monkeypatch):
    module = importlib.import_module('kronattn_mm.ops.dot_product_attention')
    monkeypatch.setattr(module, '_bytes_at_once', lambda: 1000)
    data = [tensor.requires_grad_() for tensor in inputs(3, 4, 100, 50)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (kept.append(tensor.numel()), tensor)[1], lambda tensor: tensor
    ):
        dot_product_attention(*data)
    assert max(kept) < 100 * 50


def test_large_logits_stay_finite():
    query, key, value = (1e4 * torch.randn(4, 50) for _ in range(3))
    assert torch.isfinite(efficient_attention(query, key, value)).all()
    assert torch.isfinite(dot_product_attention(query, key, value)).all()


@both_operators
def test_bad_input(operator):
    query, key, value = inputs(3, 2, 4, 5)
    with pytest.raises(ValueError, match=r"'softmax', 'scaling', got 'sofmax'"):
        operator(query, key, value, 'sofmax')
    with pytest.raises(ValueError, match='same number of channels'):
        operator(query[:2], key, value)
    with pytest.raises(ValueError, match='same number of positions'):
        operator(query, key, value[:, :3])
    with pytest.raises(ValueError, match='leading dimensions'):
        operator(query[None], key, value)
    with pytest.raises(ValueError, match='at least the dimensions'):
        operator(query[0], key, value)
    with pytest.raises(TypeError, match='one dtype'):
        operator(query.float(), key, value)
    with pytest.raises(TypeError, match='floating-point tensor, got torch.int64'):
        operator(query.long(), key, value)
    with pytest.raises(TypeError, match='floating-point tensor, got list'):
        operator([1.0], key, value)
