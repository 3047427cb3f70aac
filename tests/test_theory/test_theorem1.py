"""Theorem 1 of "Kronecker Attention Networks" (arXiv 2007.08442), reproduced.

The model (equations 2 and 3): a feature map X of h x w is Gaussian with the mean mu_i + upsilon_j
and the covariance Omega (+) Psi of its rows put one after the other, with diagonal Omega (rows)
and Psi (columns). Averages, and sums of averages, are linear maps of X, so that their means and
covariances are exact: A m and A S A^T with the full matrices of a small map, in float64. A
Monte-Carlo test draws such maps and passes them through the package's own operators.
"""

import math

import numpy as np
import pytest
import torch

from kronattn_mm.ops import axis_averages, outer_sum

SIZES = [(5, 3), (3, 5), (4, 4), (1, 6), (6, 1), (1, 1)]


class Model:
    """X ~ MN(mu outer-plus upsilon, Omega Kronecker-plus Psi) on a small map."""

    def __init__(self, h: int, w: int, centred: bool = False) -> None:
        random = np.random.default_rng(h * 10 + w)
        self.h, self.w = h, w
        self.mu, self.upsilon = random.normal(size=h), random.normal(size=w)
        if centred:
            self.upsilon -= self.mu.mean() + self.upsilon.mean()
        self.omega, self.psi = random.uniform(0.5, 2, h), random.uniform(0.5, 2, w)

    @property
    def mean(self) -> np.ndarray:
        """Equation 3, ``(h, w)``."""
        return self.mu[:, None] + self.upsilon[None, :]

    @property
    def covariance(self) -> np.ndarray:
        """Equation 2, ``(h w, h w)``: of vec(X^T), which is numpy's order of flattening."""
        return np.kron(np.diag(self.omega), np.eye(self.w)) + np.kron(
            np.eye(self.h), np.diag(self.psi)
        )


def average_matrices(h: int, w: int) -> tuple[np.ndarray, np.ndarray]:
    """The linear maps that our :func:`axis_averages` is, from its action on unit vectors.

    Returns:
        tuple: H, the average of the rows, ``(w, h w)``; L, of the columns, ``(h, h w)``.
    """
    unit_maps = torch.eye(h * w, dtype=torch.float64).reshape(h * w, 1, h, w)
    columns = axis_averages(unit_maps)[:, 0].numpy().T  # (w + h, h w), the block of H first
    return columns[:w], columns[w:]


@pytest.mark.parametrize('h, w', SIZES)
def test_average_of_the_rows_follows_equation_4(h: int, w: int):
    model = Model(h, w)
    rows, _ = average_matrices(h, w)
    np.testing.assert_allclose(
        rows @ model.mean.ravel(), model.mu.mean() + model.upsilon, atol=1e-14
    )
    np.testing.assert_allclose(
        rows @ model.covariance @ rows.T, np.diag(model.omega.mean() + model.psi) / h, atol=1e-14
    )


@pytest.mark.parametrize('h, w', SIZES)
def test_average_of_the_columns_follows_equation_5(h: int, w: int):
    model = Model(h, w)
    _, columns = average_matrices(h, w)
    np.testing.assert_allclose(
        columns @ model.mean.ravel(), model.upsilon.mean() + model.mu, atol=1e-14
    )
    np.testing.assert_allclose(
        columns @ model.covariance @ columns.T,
        np.diag(model.psi.mean() + model.omega) / w,
        atol=1e-14,
    )


def sum_of_independent_averages(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and covariance of X~ = [r_1 .. r_h]^T + [c_1 .. c_w] of the theorem.

    r_i and c_j are independent draws of the averages of rows and of columns. All of them are put
    into one vector, and X~ is a linear map of it.
    """
    h, w = model.h, model.w
    rows, columns = average_matrices(h, w)
    covariance = np.zeros((2 * h * w, 2 * h * w))
    covariance[: h * w, : h * w] = np.kron(np.eye(h), rows @ model.covariance @ rows.T)
    covariance[h * w :, h * w :] = np.kron(np.eye(w), columns @ model.covariance @ columns.T)
    mean = np.concatenate(
        [np.tile(rows @ model.mean.ravel(), h), np.tile(columns @ model.mean.ravel(), w)]
    )
    add = np.zeros((h * w, 2 * h * w))
    for i in range(h):
        for j in range(w):
            add[i * w + j, i * w + j] = 1  # r_i, entry j
            add[i * w + j, h * w + j * h + i] = 1  # c_j, entry i
    return (add @ mean).reshape(h, w), add @ covariance @ add.T


@pytest.mark.parametrize('h, w', SIZES)
def test_theorem_1_mean_and_covariance(h: int, w: int):
    """Equation 6."""
    model = Model(h, w)
    mean, covariance = sum_of_independent_averages(model)
    np.testing.assert_allclose(
        mean, model.mean + model.mu.mean() + model.upsilon.mean(), atol=1e-13
    )
    row_part = (model.omega.mean() + model.psi) / h
    column_part = (model.psi.mean() + model.omega) / w
    # Again a Kronecker sum of diagonal matrices: one for the rows, one for the columns.
    wanted = np.kron(np.diag(column_part), np.eye(w)) + np.kron(np.eye(h), np.diag(row_part))
    np.testing.assert_allclose(covariance, wanted, atol=1e-13)


@pytest.mark.parametrize('h', [1, 2, 3, 7])
def test_trace_shrinks_by_two_over_h_on_a_square(h: int):
    """Equation 7."""
    model = Model(h, h)
    _, covariance = sum_of_independent_averages(model)
    assert np.trace(covariance) / np.trace(model.covariance) == pytest.approx(2 / h, rel=1e-13)


@pytest.mark.parametrize('h, w', [(5, 3), (3, 7)])
def test_trace_on_a_rectangle(h: int, w: int):
    """The paper has the square only. Off it the ratio is 1/h + 1/w all the same."""
    model = Model(h, w)
    _, covariance = sum_of_independent_averages(model)
    assert np.trace(covariance) / np.trace(model.covariance) == pytest.approx(
        1 / h + 1 / w, rel=1e-13
    )


@pytest.mark.parametrize('h, w', SIZES)
def test_mean_is_kept_after_normalisation(h: int, w: int):
    """Equation 8: with mean(mu) + mean(upsilon) = 0, X~ has the mean of X."""
    model = Model(h, w, centred=True)
    assert model.mean.mean() == pytest.approx(0, abs=1e-14)
    mean, _ = sum_of_independent_averages(model)
    np.testing.assert_allclose(mean, model.mean, atol=1e-13)


def test_operators_on_a_map_of_the_model():
    """The operators add the two averages of one X, not independent draws.

    Without noise that gives back the mean exactly, which is what the theorem is used for. With
    noise, single variances are somewhat larger than the theorem's, since both averages hold the
    noise of the position itself: by 2 Cov(H_j, L_i) = 2 (Omega_ii + Psi_jj) / (h w).
    """
    h, w = 4, 3
    model = Model(h, w, centred=True)
    mean = torch.from_numpy(model.mean)[None, None]
    torch.testing.assert_close(outer_sum(axis_averages(mean), (h, w)), mean, rtol=0, atol=1e-13)

    rows, columns = average_matrices(h, w)
    add = np.stack([rows[j] + columns[i] for i in range(h) for j in range(w)])
    variances = np.diag(add @ model.covariance @ add.T).reshape(h, w)
    single = model.omega[:, None] + model.psi[None, :]
    theorem = (model.omega.mean() + model.psi[None, :]) / h + (
        model.psi.mean() + model.omega[:, None]
    ) / w
    np.testing.assert_allclose(variances, theorem + 2 * single / (h * w), atol=1e-13)


def test_monte_carlo():
    """Draws of the model through the operators have the moments of equations 4 to 7."""
    h, w, draws = 4, 6, 40_000
    model = Model(h, w)
    random = torch.Generator().manual_seed(0)
    deviation = torch.from_numpy(np.sqrt(model.omega[:, None] + model.psi[None, :]))

    def draw() -> torch.Tensor:
        noise = torch.randn(draws, 1, h, w, generator=random, dtype=torch.float64)
        return torch.from_numpy(model.mean) + deviation * noise

    averages = axis_averages(draw())[:, 0].numpy()
    mean = np.concatenate([model.mu.mean() + model.upsilon, model.upsilon.mean() + model.mu])
    variance = np.concatenate(
        [(model.omega.mean() + model.psi) / h, (model.psi.mean() + model.omega) / w]
    )
    error = 5 / math.sqrt(draws)  # five standard errors
    assert np.abs(averages.mean(0) - mean).max() < error * np.sqrt(variance.max())
    assert np.abs(averages.var(0) / variance - 1).max() < error * math.sqrt(2)

    # The theorem's X~: every r_i and c_j comes from a draw of X of its own.
    row_draws = torch.stack([axis_averages(draw())[:, 0, :w] for _ in range(h)], dim=1)
    column_draws = torch.stack([axis_averages(draw())[:, 0, w:] for _ in range(w)], dim=2)
    sums = (row_draws + column_draws).numpy()
    exact_mean, exact_covariance = sum_of_independent_averages(model)
    spread = np.sqrt(np.diag(exact_covariance)).reshape(h, w)
    assert (np.abs(sums.mean(0) - exact_mean) < error * spread).all()
    measured = np.cov(sums.reshape(draws, h * w), rowvar=False)
    assert np.abs(measured - exact_covariance).max() < error * 2 * spread.max() ** 2
    ratio = np.trace(measured) / np.trace(model.covariance)
    assert ratio == pytest.approx(1 / h + 1 / w, rel=0.02)


def test_what_kao_qkv_can_represent():
    """Equation 18: for each channel a row term plus a column term, so no 2 x 2 checkerboard."""
    h, w = 5, 7
    y = outer_sum(torch.randn(1, 2, w + h, dtype=torch.float64), (h, w))[0]
    assert all(torch.linalg.matrix_rank(channel) <= 2 for channel in y)
    mixed = y[:, 1:, 1:] - y[:, :-1, 1:] - y[:, 1:, :-1] + y[:, :-1, :-1]
    torch.testing.assert_close(mixed, torch.zeros_like(mixed), rtol=0, atol=1e-13)
    # And averages cannot tell a checkerboard from nothing.
    board = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64).repeat(1, 1, 2, 3)
    torch.testing.assert_close(axis_averages(board), torch.zeros(1, 1, 10, dtype=torch.float64))
