"""What several tests need: the small real data sets, and quiet, reproducible runs."""

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

# Tests must look the same on every machine: no GPU, no progress bars, no plots on a screen.
os.environ.setdefault('CUDA_VISIBLE_DEVICES', '')
os.environ.setdefault('MPLBACKEND', 'Agg')

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='session')
def shared() -> Path:
    """The folder with small real data sets and weights that may lie beside the checkout."""
    folder = Path(os.environ.get('KRONATTN_SHARED', ROOT.parent / 'shared'))
    if not (folder / 'data').is_dir():
        pytest.skip('the folder with real data (KRONATTN_SHARED, or ../shared) is not there')
    return folder


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give every test the same random numbers, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def fresh_memory_is_nan() -> Iterator[None]:
    """Fill memory that nothing was written to yet, so that a result made of it is found out."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Leave no default scope of mmengine behind for the next test, and no visualizer, which would
    go on writing where it wrote first."""
    yield
    try:
        from mmengine.registry import DefaultScope
        from mmengine.visualization import Visualizer
    except ImportError:
        return
    DefaultScope._instance_dict.clear()
    kinds = [Visualizer]
    for kind in kinds:
        kind._instance_dict.clear()
        kinds += kind.__subclasses__()


@pytest.fixture(autouse=True, scope='session')
def quiet_mmengine() -> None:
    """Keep mmengine from printing a line for every parameter that it initialises."""
    try:
        from mmengine.logging import MMLogger
    except ImportError:
        return
    MMLogger.get_current_instance().setLevel(logging.ERROR)
