"""The hooks that every config runs with, each by itself."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')

from kronattn_mm.engine import EpochSeed, ValidationPictures


class Visualizer:
    """Writes down what it is asked to draw."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, tuple, str, int]] = []

    def add_datasample(
        self, name: str, image: np.ndarray, data_sample: SimpleNamespace, step: int
    ) -> None:
        self.drawn.append((name, image.shape, data_sample.img_path, step))


@pytest.mark.parametrize(
    ('batches', 'number', 'expected'),
    [(10, 4, [0, 2, 4, 6]), (10, 1, [0]), (3, 4, [0, 1, 2]), (100, 4, [0, 25, 50, 75])],
)
def test_validation_pictures_are_few_and_spread(
    made_set: Path, batches: int, number: int, expected: list[int]
) -> None:
    hook = ValidationPictures(number)
    visualizer = Visualizer()
    runner = SimpleNamespace(val_dataloader=range(batches), iter=7, visualizer=visualizer)
    picture = str(made_set / 'val' / '001.jpg')
    drawn_at = []
    for batch_idx in range(batches):
        before = len(visualizer.drawn)
        hook.after_val_iter(runner, batch_idx, None, [SimpleNamespace(img_path=picture)])
        if len(visualizer.drawn) > before:
            drawn_at.append(batch_idx)
    assert drawn_at == expected
    # One name for each place, one step for each validation: nothing is written over.
    assert [name for name, *_ in visualizer.drawn] == [f'val_{i}' for i in range(len(expected))]
    assert {step for *_, step in visualizer.drawn} == {7}
    assert {shape for _, shape, *_ in visualizer.drawn} == {(96, 96, 3)}


@pytest.mark.parametrize('number', [0, -1])
def test_no_pictures_is_said_by_leaving_the_hook_out(number: int) -> None:
    with pytest.raises(ValueError, match=f'at least 1, got {number}'):
        ValidationPictures(number)


def test_epoch_seed_depends_on_seed_and_epoch_only() -> None:
    def draws(seed: int, epoch: int) -> tuple[float, float]:
        EpochSeed().before_train_epoch(SimpleNamespace(seed=seed, epoch=epoch))
        return torch.rand(()).item(), np.random.rand()

    first = draws(5, 3)
    torch.rand(100)
    assert draws(5, 3) == first
    assert draws(5, 4) != first
    assert draws(6, 3) != first
    draws(2**32 - 1, 10)  # NumPy takes 32 bits
