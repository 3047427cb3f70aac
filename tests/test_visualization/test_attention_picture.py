"""The picture itself: what it is made of, and that nothing overlaps or runs out of it."""

import numpy as np
import pytest
import torch

pytest.importorskip('mmengine')
pytest.importorskip('matplotlib')

from kronattn_mm.visualization.attention_picture import (
    _arrange,
    _short,
    draw_attention,
    network_image,
)


def photograph(height=60, width=80):
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows * 4 % 256, columns * 3 % 256, (rows + columns) % 256], axis=2)
    return image.astype(np.uint8)


def softmax_maps(heads=1, count=16, height=16, width=20):
    return torch.randn(heads, count, height * width).softmax(-1).unflatten(-1, (height, width))


def texts_of(monkeypatch):
    """Collect what the picture says; matplotlib has drawn it by then."""
    from matplotlib.figure import Figure

    figures = []
    add = Figure.add_axes
    monkeypatch.setattr(
        Figure, 'add_axes', lambda self, *args, **kw: figures.append(self) or add(self, *args, **kw)
    )
    return lambda: [text for text in figures[-1].texts if text.get_text()]


def test_picture_says_what_it_shows(monkeypatch):
    written = texts_of(monkeypatch)
    picture = draw_attention(
        photograph(), softmax_maps(heads=2, count=8), (64, 80), 'neck.fpn1', 'cat.jpg', count=3
    )
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert 700 < picture.shape[1] < 1800
    assert picture.std() > 20  # not blank
    texts = [text.get_text() for text in written()]
    assert texts[0] == 'image'
    assert sum(text.startswith('head ') for text in texts) == 3
    assert sum(text.endswith(' × even') for text in texts) == 3
    assert any('cat.jpg · neck.fpn1 · 16 × 20 cells · 3 of 16 maps' in text for text in texts)
    assert any('sums to 1' in text.replace('\n', ' ') for text in texts)


@pytest.mark.parametrize('shape', [(60, 80), (200, 40), (30, 300)])
@pytest.mark.parametrize('count', [1, 6])
def test_texts_neither_overlap_nor_run_out(monkeypatch, shape, count):
    written = texts_of(monkeypatch)
    draw_attention(
        photograph(*shape),
        softmax_maps(heads=2),
        shape,
        'backbone.res4',
        'a_very_long_name_of_a_file_' * 9 + '.jpg',
        count,
        warning='untrained: ' + 'the checkpoint has no weights ' * 9,
    )
    texts = written()
    boxes = [text.get_window_extent() for text in texts]
    figure = texts[0].figure.bbox
    for index, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0, texts[index]
        assert box.x1 <= figure.x1 and box.y1 <= figure.y1, texts[index]
        for other in boxes[index + 1 :]:
            assert not box.overlaps(other), texts[index]


def test_the_shown_map_lies_where_it_belongs():
    # One hot cell of a map over 64 x 128, of which 48 x 80 are image.
    maps = torch.full((1, 1, 16, 32), 1e-6)
    maps[0, 0, 4, 10] = 1
    image = np.full((48, 80, 3), 128, np.uint8)
    picture = draw_attention(image, maps / maps.sum(), (64, 128), 'neck.fpn1', count=1)
    hot = picture[..., 0].astype(int) - picture[..., 2] > 120
    rows, columns = np.nonzero(hot[96:-66])  # without heading, caption and legend
    grey = np.all(np.abs(picture[96:-66].astype(int) - 128) < 2, axis=2)
    panel_rows, panel_columns = np.nonzero(grey)
    # the picture's first panel is the image, plain grey, and the second has the same size
    top, left = panel_rows.min(), panel_columns.min()
    height, width = panel_rows.max() + 1 - top, panel_columns.max() + 1 - left
    second = picture.shape[1] / 2
    assert (rows.mean() - top) / height == pytest.approx((4 + 0.5) * 4 / 48, abs=0.02)
    assert (columns.mean() - second) / width == pytest.approx((10 + 0.5) * 4 / 80, abs=0.02)


def test_maps_that_do_not_sum_to_one_are_said_not_to(monkeypatch):
    written = texts_of(monkeypatch)
    draw_attention(photograph(), torch.randn(1, 4, 15, 20), (60, 80), 'neck.fpn1')
    texts = ' '.join(text.get_text() for text in written()).replace('\n', ' ')
    assert 'do not sum to 1' in texts and '× even' not in texts


def test_even_maps_can_be_drawn():
    maps = torch.full((1, 3, 4, 5), 1 / 20)
    assert draw_attention(photograph(), maps, (60, 80), 'neck.fpn5').std() > 0


def test_one_cell_and_one_pixel_can_be_drawn():
    assert draw_attention(photograph(1, 1), torch.ones(1, 2, 1, 1), (32, 32), 'x').size


def test_the_same_input_gives_the_same_picture():
    maps = softmax_maps()
    first, second = (draw_attention(photograph(), maps, (64, 80), 'x') for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    'image, maps, word',
    [
        (photograph(), torch.ones(4, 15, 20), 'num_heads, maps, h, w'),
        (photograph()[..., 0], torch.ones(1, 4, 15, 20), 'uint8'),
        (photograph() / 255, torch.ones(1, 4, 15, 20), 'float64'),
    ],
)
def test_wrong_shapes_are_named(image, maps, word):
    with pytest.raises(ValueError, match=word):
        draw_attention(image, maps, (60, 80), 'x')


def test_pictures_of_what_the_network_gets():
    bgr = torch.tensor([[[1]], [[2]], [[3]]], dtype=torch.uint8)
    assert network_image(bgr)[0, 0].tolist() == [3, 2, 1]
    assert network_image(bgr.float())[0, 0].tolist() == [3, 2, 1]
    assert network_image(bgr[:1])[0, 0].tolist() == [1, 1, 1]
    normalised = torch.tensor([[[-2.0, 0.0]], [[0.0, 0.0]], [[0.0, 2.0]]])
    assert network_image(normalised).tolist() == [[[128, 128, 0], [255, 128, 128]]]


def test_six_maps_of_a_photograph_fill_two_rows_of_four():
    rows, columns, _, _ = _arrange(7, (300, 400))
    assert (rows, columns) == (2, 4)
    assert [_short(value) for value in (0.001, 0.25, 4.76, 88.4, -3.21)] == [
        '0.00',
        '0.25',
        '4.8',
        '88',
        '-3.2',
    ]


def test_importing_the_room_does_not_import_matplotlib():
    import subprocess
    import sys

    code = (
        'import sys, kronattn_mm.visualization as v; v.select_distinct; '
        'assert "matplotlib.figure" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
