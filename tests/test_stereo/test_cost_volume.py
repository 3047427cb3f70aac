"""Volume and regression against their equations as loops in float64."""

import math

import pytest
import torch

from kronattn_mm.models.stereo.cost_volume import concatenation_volume, soft_argmin


def volume_by_loops(left: torch.Tensor, right: torch.Tensor, planes: int) -> torch.Tensor:
    n, c, h, w = left.shape
    volume = torch.zeros(n, 2 * c, planes, h, w, dtype=left.dtype)
    for d in range(planes):
        for y in range(h):
            for x in range(w):
                if x >= d:
                    volume[:, :c, d, y, x] = left[:, :, y, x]
                    volume[:, c:, d, y, x] = right[:, :, y, x - d]
    return volume


def soft_argmin_by_loops(costs: torch.Tensor) -> torch.Tensor:
    n, planes, h, w = costs.shape
    result = torch.zeros(n, h, w, dtype=torch.float64)
    for i in range(n):
        for y in range(h):
            for x in range(w):
                weights = [math.exp(-float(costs[i, d, y, x])) for d in range(planes)]
                result[i, y, x] = sum(d * s for d, s in enumerate(weights)) / sum(weights)
    return result


@pytest.mark.parametrize(
    ('size', 'planes'), [((3, 7), 4), ((1, 1), 1), ((2, 5), 5), ((2, 3), 6), ((5, 4), 1)]
)
def test_volume_equals_its_definition(size, planes):
    left = torch.randn(2, 3, *size, dtype=torch.float64)
    right = torch.randn(2, 3, *size, dtype=torch.float64)
    assert torch.equal(
        concatenation_volume(left, right, planes), volume_by_loops(left, right, planes)
    )


def test_gradients_of_the_volume():
    left = torch.randn(1, 2, 2, 4, dtype=torch.float64, requires_grad=True)
    right = torch.randn(1, 2, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: concatenation_volume(a, b, 3), (left, right))


def test_where_the_views_agree_the_halves_are_equal():
    right = torch.randn(1, 3, 4, 12, dtype=torch.float64)
    left = torch.roll(right, 3, -1)  # disparity 3 but for the columns that came around
    volume = concatenation_volume(left, right, 6)
    differences = (volume[:, :3] - volume[:, 3:]).abs().sum(1)[..., 5:]
    assert differences[:, 3].max() == 0
    assert differences[:, [0, 1, 2, 4, 5]].amin() > 0


def test_soft_argmin_equals_equation_1():
    costs = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(
        soft_argmin(costs).double(), soft_argmin_by_loops(costs), rtol=1e-5, atol=1e-6
    )


def test_one_low_cost_decides_and_two_give_what_lies_between():
    costs = torch.full((1, 8, 1, 2), 50.0)
    costs[0, 3, 0, 0] = -50
    costs[0, [2, 3], 0, 1] = -50
    torch.testing.assert_close(soft_argmin(costs), torch.tensor([[[3.0, 2.5]]]))


def test_half_precision_costs_are_summed_in_float32():
    costs = torch.zeros(1, 192, 1, 1, dtype=torch.bfloat16)
    assert soft_argmin(costs).dtype == torch.float32
    torch.testing.assert_close(soft_argmin(costs), torch.full((1, 1, 1), 95.5))


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match=r'same shape, got \(1, 2, 3, 4\) and \(1, 2, 3, 5\)'):
        concatenation_volume(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5), 2)
    with pytest.raises(ValueError, match='planes must be at least 1, got 0'):
        concatenation_volume(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
