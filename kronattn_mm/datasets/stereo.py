"""Stereo pairs in the folders of Scene Flow and of KITTI.

Scene Flow: Mayer et al., "A Large Dataset to Train Convolutional Networks for Disparity, Optical
Flow, and Scene Flow Estimation" (arXiv 1512.02134). KITTI 2012 and 2015: the stereo benchmarks of
the KITTI vision suite.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mmengine.dataset import BaseDataset

from ..registry import DATASETS

_PICTURES = ('.png', '.webp')  # Scene Flow is distributed as either


class StereoDataset(BaseDataset):
    """What both layouts share: a list of pairs, each with the paths of its files.

    Args:
        data_root (str): Folder of the set.
        data_prefix (dict): Folders in it, by what they hold.
        pipeline (Sequence[dict]): Transforms. Defaults to none.
        indices (int or Sequence[int], optional): Which pairs to use, as a number of the first ones
            or a list. Defaults to all.
        test_mode (bool): A pair that cannot be read is an error instead of being passed over.
            Defaults to False.
        lazy_init (bool): Look for the files when they are first needed. Defaults to False.

    Raises:
        FileNotFoundError: If a folder or a partner of a file is missing.
        TypeError: If ``data_prefix`` names another kind of folder.
    """

    default_prefix: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        data_root: str = '',
        data_prefix: dict[str, str] | None = None,
        pipeline: Sequence[dict | Callable] = (),
        indices: int | Sequence[int] | None = None,
        test_mode: bool = False,
        lazy_init: bool = False,
    ) -> None:
        prefix = dict(self.default_prefix, **(data_prefix or {}))
        unknown = [kind for kind in prefix if kind not in self.default_prefix]
        if unknown:
            raise TypeError(
                f'data_prefix of {type(self).__name__} has no {unknown[0]!r}; it has '
                f'{", ".join(self.default_prefix)}'
            )
        super().__init__(
            data_root=data_root,
            data_prefix=prefix,
            pipeline=list(pipeline),
            indices=indices,
            test_mode=test_mode,
            lazy_init=lazy_init,
        )

    def load_data_list(self) -> list[dict[str, Any]]:
        """Return the paths of every pair's files.

        Returns:
            list[dict]: ``img_path`` (left view), ``right_path``, ``disparity_path`` and, where
            there is such a file, ``occlusion_path``.
        """
        raise NotImplementedError(f'{type(self).__name__} does not say where its files are')

    def _folder(self, kind: str) -> Path:
        folder = Path(self.data_prefix[kind])
        if not folder.is_dir():
            raise FileNotFoundError(
                f'{type(self).__name__}: there is no folder {folder} (data_prefix {kind!r}); put '
                'the data there, or give another data_root'
            )
        return folder


@DATASETS.register_module()
class SceneFlowDataset(StereoDataset):
    """Pairs of FlyingThings3D, Monkaa, Driving, and of what has their layout.

    Every picture in a folder ``left`` below the prefix ``image`` is the left view of a pair; the
    right one has the same path but for ``right``, and its disparities have the same path below the
    prefix ``disparity``, as ``.pfm``::

        frames_cleanpass/TRAIN/A/0000/left/0006.png     FlyingThings3D
        disparity/TRAIN/A/0000/left/0006.pfm
        frames_cleanpass/a_rain_of_stones_x2/left/0048.png            Monkaa
        frames_cleanpass/35mm_focallength/scene_forwards/fast/left/0001.png    Driving

    Args:
        data_root (str): Folder of the set.
        data_prefix (dict): ``image`` and ``disparity``; ``occlusion`` for a folder with masks of
            what only the left view shows (255 there), which need not be there. Defaults to
            ``frames_cleanpass``, ``disparity`` and ``disparity_occlusions``.
        pipeline (Sequence[dict]): Transforms. Defaults to none.
        indices (int or Sequence[int], optional): Which pairs to use, as a number of the first ones
            or a list. Defaults to all.
        test_mode (bool): A pair that cannot be read is an error instead of being passed over.
            Defaults to False.
        lazy_init (bool): Look for the files when they are first needed. Defaults to False.

    Raises:
        FileNotFoundError: If a folder or a partner of a file is missing, or there is no pair.
        TypeError: If ``data_prefix`` names another kind of folder.
    """

    METAINFO = dict(dataset_type='Scene Flow')
    default_prefix = dict(
        image='frames_cleanpass', disparity='disparity', occlusion='disparity_occlusions'
    )

    def load_data_list(self) -> list[dict[str, Any]]:
        """Find the pairs, in the order of their paths."""
        images, disparities = self._folder('image'), self._folder('disparity')
        occlusions = Path(self.data_prefix['occlusion'])
        has_occlusions = occlusions.is_dir()
        pairs = []
        for left in sorted(images.rglob('left/*')):
            if left.suffix.lower() not in _PICTURES:
                continue
            relative = left.relative_to(images)
            paths = dict(
                img_path=left,
                right_path=left.parent.with_name('right') / left.name,
                disparity_path=(disparities / relative).with_suffix('.pfm'),
            )
            if has_occlusions:
                paths['occlusion_path'] = (occlusions / relative).with_suffix('.png')
            pairs.append(_existing(paths))
        if not pairs:
            raise FileNotFoundError(
                f'{images} has no pictures in folders named left ({" or ".join(_PICTURES)})'
            )
        return pairs


@DATASETS.register_module()
class KITTIStereoDataset(StereoDataset):
    """Pairs of KITTI 2015 or 2012 whose disparities were measured.

    ::

        training/image_2/000000_10.png  image_3/...  disp_occ_0/...     2015
        training/colored_0/000000_10.png  colored_1/...  disp_occ/...   2012

    A pair is what has a disparity map; those are the pictures ending in ``_10``.

    Args:
        data_root (str): Folder of the set.
        data_prefix (dict): ``left``, ``right`` and ``disparity``. Defaults to KITTI 2015's; for
            2012: ``dict(left='training/colored_0', right='training/colored_1',
            disparity='training/disp_occ')``.
        pipeline (Sequence[dict]): Transforms. Defaults to none.
        indices (int or Sequence[int], optional): Which pairs to use, as a number of the first ones
            or a list. Defaults to all.
        test_mode (bool): A pair that cannot be read is an error instead of being passed over.
            Defaults to False.
        lazy_init (bool): Look for the files when they are first needed. Defaults to False.

    Raises:
        FileNotFoundError: If a folder or a partner of a file is missing, or there is no pair.
        TypeError: If ``data_prefix`` names another kind of folder.
    """

    METAINFO = dict(dataset_type='KITTI')
    default_prefix = dict(
        left='training/image_2', right='training/image_3', disparity='training/disp_occ_0'
    )

    def load_data_list(self) -> list[dict[str, Any]]:
        """Find the pairs, in the order of their names."""
        left, right = self._folder('left'), self._folder('right')
        folder = self._folder('disparity')
        pairs = [
            _existing(
                dict(
                    img_path=left / disparity.name,
                    right_path=right / disparity.name,
                    disparity_path=disparity,
                )
            )
            for disparity in sorted(folder.glob('*.png'))
        ]
        if not pairs:
            raise FileNotFoundError(f'{folder} has no .png files')
        return pairs


def _existing(paths: dict[str, Path]) -> dict[str, str]:
    for kind, path in paths.items():
        if not path.is_file():
            first = next(iter(paths.values()))
            raise FileNotFoundError(f'{path} is missing ({kind} of the pair of {first})')
    return {kind: str(path) for kind, path in paths.items()}
