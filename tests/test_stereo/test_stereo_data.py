"""Readers of the two layouts, transforms, metrics and pictures."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS, METRICS, TRANSFORMS, VISUALIZERS
from mmengine.structures import BaseDataElement
from PIL import Image
from stereo_pairs import write_kitti, write_scene_flow

from kronattn_mm.visualization.disparity import draw_disparity

LOAD = [dict(type='kronattn_mm.LoadStereoPair'), dict(type='kronattn_mm.LoadDisparity')]
PACK = dict(type='kronattn_mm.PackStereoInputs')
SPLIT = dict(
    image='frames_cleanpass/TRAIN',
    disparity='disparity/TRAIN',
    occlusion='disparity_occlusions/TRAIN',
)


def dataset(kind: str, root, **more):
    return DATASETS.build(dict(type=f'kronattn_mm.{kind}', data_root=str(root), **more))


def test_scene_flow(tmp_path):
    write_scene_flow(tmp_path, pairs=3)
    data = dataset(
        'SceneFlowDataset', tmp_path, data_prefix=SPLIT, pipeline=[*LOAD, PACK], indices=[0, 2]
    )
    assert len(data) == 2
    item = data[1]
    inputs, sample = item['inputs'], item['data_samples']
    assert inputs.shape == (2, 3, 64, 96) and inputs.dtype == torch.uint8
    assert sample.img_path.endswith('frames_cleanpass/TRAIN/left/0002.png')
    assert sample.right_path.endswith('frames_cleanpass/TRAIN/right/0002.png')
    left = cv2.imread(sample.img_path)
    np.testing.assert_array_equal(inputs[0].numpy(), left.transpose(2, 0, 1))
    assert torch.isnan(sample.gt_disparity[0, 0]) and sample.gt_disparity[3, 3] == 6
    assert sample.gt_occluded[:, :6].all() and not sample.gt_occluded[:, 6:].any()
    # What is at x in the left view is at x - 6 in the right one.
    assert torch.equal(inputs[0, :, :, 6:], inputs[1, :, :, :-6])


def test_scene_flow_in_nested_folders_and_as_webp(tmp_path):
    write_scene_flow(tmp_path / 'flat', pairs=1)
    for kind, suffix in (('frames_cleanpass', '.png'), ('disparity', '.pfm')):
        for side in ('left', 'right'):
            if kind == 'disparity' and side == 'right':
                continue
            source = tmp_path / 'flat' / kind / 'TRAIN' / side / f'0000{suffix}'
            folder = tmp_path / 'deep' / kind / '35mm_focallength' / 'scene_forwards' / side
            folder.mkdir(parents=True)
            if suffix == '.png':
                cv2.imwrite(str(folder / '0000.webp'), cv2.imread(str(source)))
            else:
                (folder / '0000.pfm').write_bytes(source.read_bytes())
    data = dataset('SceneFlowDataset', tmp_path / 'deep', pipeline=[*LOAD, PACK])
    assert len(data) == 1 and 'gt_occluded' not in data[0]['data_samples']
    assert data[0]['data_samples'].gt_disparity[1, 1] == 4


def test_kitti(tmp_path):
    data = dataset('KITTIStereoDataset', write_kitti(tmp_path), pipeline=[*LOAD, PACK])
    assert len(data) == 2  # the second time step has no measurements
    sample = data[0]['data_samples']
    assert torch.isnan(sample.gt_disparity[:20]).all() and (sample.gt_disparity[20:] == 4.25).all()


@pytest.mark.parametrize(
    ('kind', 'remove', 'message'),
    [
        ('SceneFlowDataset', 'frames_cleanpass/TRAIN/right/0001.png', 'right_path of the pair of'),
        ('SceneFlowDataset', 'disparity/TRAIN/left/0000.pfm', 'disparity_path of the pair of'),
        ('KITTIStereoDataset', 'training/image_3/000000_10.png', 'right_path of the pair of'),
    ],
)
def test_a_missing_partner_is_named(tmp_path, kind, remove, message):
    write = write_kitti if kind.startswith('KITTI') else write_scene_flow
    write(tmp_path)
    (tmp_path / remove).unlink()
    with pytest.raises(FileNotFoundError, match=message) as caught:
        dataset(kind, tmp_path, **({} if 'KITTI' in kind else dict(data_prefix=SPLIT)))
    assert remove in str(caught.value)


def test_a_folder_that_is_not_there_or_empty_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*frames_cleanpass.*'image'"):
        dataset('SceneFlowDataset', tmp_path)
    for folder in ('frames_cleanpass', 'disparity'):
        (tmp_path / folder).mkdir()
    with pytest.raises(FileNotFoundError, match='no pictures in folders named left'):
        dataset('SceneFlowDataset', tmp_path)
    with pytest.raises(TypeError, match="has no 'images'; it has image, disparity, occlusion"):
        dataset('SceneFlowDataset', tmp_path, data_prefix=dict(images='x'))


def test_views_and_truth_of_different_sizes_are_refused(tmp_path):
    write_scene_flow(tmp_path)
    right = tmp_path / 'frames_cleanpass/TRAIN/right/0000.png'
    cv2.imwrite(str(right), np.zeros((64, 95, 3), np.uint8))
    data = dataset('SceneFlowDataset', tmp_path, data_prefix=SPLIT, pipeline=LOAD, test_mode=True)
    with pytest.raises(ValueError, match='differ in size.*96 x 64 pixels.*95 x 64 pixels'):
        data[0]
    mask = tmp_path / 'disparity_occlusions/TRAIN/left/0001.png'
    cv2.imwrite(str(mask), np.zeros((4, 4), np.uint8))
    with pytest.raises(ValueError, match='is 4 x 4 pixels, its left view'):
        data[1]
    right.write_bytes(right.read_bytes()[:50])
    with pytest.raises(ValueError, match='0000.png is not a picture, or is truncated'):
        data[0]


def test_windows_of_views_and_truth_agree(tmp_path):
    write_scene_flow(tmp_path, pairs=1)
    crop = dict(type='kronattn_mm.RandomCropPair', crop_size=(24, 40))
    data = dataset('SceneFlowDataset', tmp_path, data_prefix=SPLIT, pipeline=[*LOAD, crop, PACK])
    whole = dataset('SceneFlowDataset', tmp_path, data_prefix=SPLIT, pipeline=LOAD)[0]
    corners = set()
    for _ in range(8):
        item = data[0]
        inputs, sample = item['inputs'], item['data_samples']
        assert sample.img_shape == (24, 40) and sample.ori_shape == (64, 96)
        assert sample.gt_disparity.shape == sample.gt_occluded.shape == (24, 40)
        assert torch.equal(inputs[0, :, :, 4:], inputs[1, :, :, :-4])
        window = inputs[0].numpy().transpose(1, 2, 0)
        rows, columns = np.nonzero((whole['left'][:41, :57] == window[0, 0]).all(2))
        found = {
            (int(y), int(x))
            for y, x in zip(rows, columns, strict=True)
            if np.array_equal(whole['left'][y : y + 24, x : x + 40], window)
        }
        assert found
        corners.update(found)
    assert len(corners) > 4
    big = TRANSFORMS.build(dict(crop, crop_size=(65, 40)))
    with pytest.raises(ValueError, match=r'crop_size \(65, 40\) is larger than .* 96 x 64 pixels'):
        big(whole)
    with pytest.raises(ValueError, match='crop_size must be height and width'):
        TRANSFORMS.build(dict(crop, crop_size=64))


def estimate(prediction, truth, occluded=None):
    sample = dict(pred_disparity=torch.tensor(prediction), gt_disparity=torch.tensor(truth))
    if occluded is not None:
        sample['gt_occluded'] = torch.tensor(occluded)
    return sample


def test_metrics_by_hand():
    nan = float('nan')
    metric = METRICS.build(dict(type='kronattn_mm.DisparityMetric'))
    # Errors 0, 2, 3, 3.5 (of 100: 3.5 %) and 4; the NaN does not count.
    samples = [
        estimate(
            [[10.0, 12.0, 13.0], [103.5, 6.0, 9.0]],
            [[10.0, 10.0, 10.0], [100.0, 10.0, nan]],
            [[False, False, True], [False, True, True]],
        ),
        estimate([[1.0]], [[0.0]], [[False]]),
    ]
    metric.process(None, samples)
    result = metric.evaluate(2)
    assert result == pytest.approx(
        {
            'disparity/EPE': (0 + 2 + 3 + 3.5 + 4 + 1) / 6,
            'disparity/3px': 100 * 2 / 6,  # exactly 3 pixels is not more than 3
            'disparity/D1': 100 * 1 / 6,
            'disparity/EPE_visible': (0 + 2 + 3.5 + 1) / 4,
            'disparity/3px_visible': 25.0,
            'disparity/D1_visible': 0.0,
        }
    )


def test_metrics_below_a_largest_disparity_and_without_masks():
    metric = METRICS.build(dict(type='kronattn_mm.DisparityMetric', max_disparity=50))
    metric.process(None, [estimate([[10.0, 12.0]], [[11.0, 50.0]])])
    assert metric.evaluate(1) == {'disparity/EPE': 1, 'disparity/3px': 0, 'disparity/D1': 0}


def test_metrics_refuse_what_they_cannot_judge():
    metric = METRICS.build(dict(type='kronattn_mm.DisparityMetric'))
    with pytest.raises(ValueError, match=r'differ in shape: \(1, 2\) and \(1, 1\)'):
        metric.process(None, [estimate([[1.0, 2.0]], [[1.0]])])
    with pytest.raises(ValueError, match='1 predictions are not finite'):
        metric.process(None, [estimate([[float('inf')]], [[1.0]])])
    metric.process(None, [estimate([[1.0]], [[float('nan')]])])
    with pytest.raises(ValueError, match='no pixel of the evaluated pairs'):
        metric.evaluate(1)
    with pytest.raises(ValueError, match='max_disparity must be above 0, got 0'):
        METRICS.build(dict(type='kronattn_mm.DisparityMetric', max_disparity=0))


def pixels_like(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(picture.astype(int) - colour).max(-1) <= 8).sum())


def test_the_picture_shows_unknown_pixels_grey_and_errors_bright():
    left = np.full((40, 60, 3), 30, np.uint8)
    truth = np.full((40, 60), 8.0, np.float32)
    grey = (0xB0, 0xB0, 0xB0)
    right_all_over = draw_disparity(left, truth, truth)
    assert pixels_like(right_all_over, grey) < 2000  # of letters
    truth[:20] = np.nan
    picture = draw_disparity(left, np.full((40, 60), 8.0, np.float32), truth)
    assert pixels_like(picture, grey) > 5000
    # magma begins nearly black and ends in a pale yellow
    wrong = draw_disparity(left, np.full((40, 60), 20.0, np.float32), truth)
    pale = (252, 253, 191)
    assert pixels_like(wrong, pale) > pixels_like(picture, pale) + 5000
    with pytest.raises(ValueError, match=r'truth has the shape \(3, 3\), the view \(40, 60\)'):
        draw_disparity(left, truth, np.zeros((3, 3), np.float32))


def test_the_visualizer_writes_files_and_feeds_backends(tmp_path):
    visualizer = VISUALIZERS.build(
        dict(
            type='kronattn_mm.DisparityVisualizer',
            name='disparities',
            vis_backends=[dict(type='LocalVisBackend')],
            save_dir=str(tmp_path),
        )
    )
    sample = BaseDataElement(
        metainfo=dict(img_path='a/left/0001.png'), pred_disparity=torch.rand(40, 60) * 9
    )
    image = np.zeros((40, 60, 3), np.uint8)
    out = tmp_path / 'some' / 'where' / '0001.png'
    visualizer.add_datasample('x', image, sample, out_file=out)
    alone = Image.open(out).size
    sample.gt_disparity = torch.rand(40, 60) * 9
    visualizer.add_datasample('x', image, sample, out_file=out)
    assert Image.open(out).size[1] > 1.5 * alone[1]  # truth and error came in a second row
    assert [file.name for file in out.parent.iterdir()] == ['0001.png']
    visualizer.add_datasample('val_0', image, sample, step=3)
    assert list(tmp_path.rglob('val_0_3.png'))
