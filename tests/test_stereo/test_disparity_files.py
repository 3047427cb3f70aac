"""PFM and KITTI's PNG: bytes made here by hand, and broken files."""

import struct

import cv2
import numpy as np
import pytest

from kronattn_mm.datasets.disparity_files import (
    DisparityFileError,
    read_disparity,
    read_pfm,
    write_kitti_png,
    write_pfm,
)

ROWS_FROM_THE_TOP = [[1.5, 2.0, -3.25], [4.0, 5.5, 100.0]]


@pytest.mark.parametrize(('scale', 'order'), [('-1.0', '<'), ('1.0', '>'), ('-0.003922', '<')])
def test_pfm_of_both_byte_orders_with_the_lowest_row_first(tmp_path, scale, order):
    path = tmp_path / 'a.pfm'
    stored = [*ROWS_FROM_THE_TOP[1], *ROWS_FROM_THE_TOP[0]]
    path.write_bytes(f'Pf\n3 2\n{scale}\n'.encode() + struct.pack(f'{order}6f', *stored))
    disparity = read_disparity(path)
    assert disparity.dtype == np.float32 and disparity.flags.writeable
    np.testing.assert_array_equal(disparity, np.float32(ROWS_FROM_THE_TOP))


def test_pfm_data_may_begin_with_a_byte_that_looks_like_a_space(tmp_path):
    value = struct.unpack('<f', b'\n 12')[0]
    (tmp_path / 'a.pfm').write_bytes(b'Pf 1 1 -1\n' + b'\n 12')
    assert read_pfm(tmp_path / 'a.pfm')[0, 0] == np.float32(value)


def test_pfm_survives_writing_and_reading(tmp_path):
    disparity = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    disparity[2, 3] = np.nan
    write_pfm(tmp_path / 'a.pfm', disparity)
    np.testing.assert_array_equal(read_pfm(tmp_path / 'a.pfm'), disparity)


def test_kitti_png_is_divided_by_256_and_zero_is_no_measurement(tmp_path):
    path = str(tmp_path / 'a.png')
    cv2.imwrite(path, np.array([[0, 1, 256], [384, 65535, 0]], np.uint16))
    np.testing.assert_array_equal(
        read_disparity(path), np.float32([[np.nan, 1 / 256, 1], [1.5, 65535 / 256, np.nan]])
    )


def test_kitti_png_survives_writing_and_reading(tmp_path):
    disparity = np.array([[np.nan, 0.0, 3.7], [12.0, 255.9, np.nan]], np.float32)
    write_kitti_png(tmp_path / 'a.png', disparity)
    read = read_disparity(tmp_path / 'a.png')
    np.testing.assert_array_equal(np.isnan(read), np.isnan(disparity))
    assert read[0, 1] == 1 / 256  # 0 would mean that nothing was measured
    np.testing.assert_allclose(read, disparity, atol=1 / 256)


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        ('a.pfm', b'Pf\n3 2\n-1.0\n' + bytes(23), 'should have 24 bytes.*but has 23.*truncated'),
        ('a.pfm', b'Pf\n3 2\n-1.0\n' + bytes(25), 'should have 24 bytes.*but has 25'),
        ('a.pfm', b'P6\n3 2\n255\n' + bytes(18), "not a PFM file: it begins with b'P6"),
        ('a.pfm', b'', 'not a PFM file'),
        ('a.pfm', b'PF\n1 1\n-1.0\n' + bytes(12), r'holds colours \(PF\)'),
        ('a.pfm', b'Pf\n1 1\n0\n' + bytes(4), "the scale '0' are no map"),
        ('a.pfm', b'Pf\n1 1\nabc\n' + bytes(4), "the scale 'abc' are no map"),
        ('a.pfm', b'Pf\n0 1\n-1\n', 'a width of 0'),
        ('a.png', b'', 'is not a picture, or is truncated'),
        ('a.png', b'\x89PNG\r\n\x1a\n' + bytes(40), 'is not a picture, or is truncated'),
        ('a.tif', b'', 'read from .pfm and .png files'),
    ],
)
def test_broken_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DisparityFileError, match=message) as caught:
        read_disparity(path)
    assert str(path) in str(caught.value)


def test_a_picture_is_not_taken_for_a_disparity_map(tmp_path):
    path = str(tmp_path / 'a.png')
    cv2.imwrite(path, np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(DisparityFileError, match=r'uint8 values of the shape \(2, 2, 3\)'):
        read_disparity(path)


def test_maps_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match='-1 to 2 do not fit into 16 bits'):
        write_kitti_png(tmp_path / 'a.png', np.float32([[-1, 2]]))
    with pytest.raises(ValueError, match=r'two dimensions, got the shape \(1, 2, 3\)'):
        write_pfm(tmp_path / 'a.pfm', np.zeros((1, 2, 3), np.float32))
    assert not list(tmp_path.iterdir())
