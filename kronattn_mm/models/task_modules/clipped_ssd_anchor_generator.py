"""SSD's priors, limited to the size of the picture.

``mmdet.SSDAnchorGenerator`` makes the same priors and limits nothing. The code that
"Shift-and-Balance Attention" (arXiv 2103.13080, section 5.2) builds on,
github.com/qfgaohao/pytorch-ssd, limits centre, width and height to the picture: a corner may still
lie outside.
"""

import torch
from mmdet.models.task_modules.prior_generators import SSDAnchorGenerator
from torch import Tensor

from ...layers.arguments import positive_int
from ...registry import TASK_UTILS


@TASK_UTILS.register_module()
class ClippedSSDAnchorGenerator(SSDAnchorGenerator):
    """``mmdet.SSDAnchorGenerator`` whose priors have centres in the picture and at most its size.

    Args:
        strides, ratios, min_sizes, max_sizes: As in ``mmdet.SSDAnchorGenerator``, in pixels.
        input_size (int): Width and height of the picture, in pixels. Defaults to 300.

    Raises:
        TypeError: If ``input_size`` is not an integer.
        ValueError: If ``input_size`` is below 1.
    """

    def __init__(
        self,
        strides: list[int],
        ratios: list[list[float]],
        min_sizes: list[float],
        max_sizes: list[float],
        input_size: int = 300,
    ) -> None:
        super().__init__(strides, ratios, min_sizes, max_sizes, scale_major=False)
        self.input_size = positive_int('input_size', input_size)

    def single_level_grid_priors(
        self,
        featmap_size: tuple[int, int],
        level_idx: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = 'cuda',
    ) -> Tensor:
        """Return the priors of a level as ``(H W priors, 4)``, corners x1, y1, x2, y2 in pixels.

        Args:
            featmap_size (tuple[int, int]): Height and width of the map.
            level_idx (int): Which level.
            dtype (torch.dtype): Type of the result. Defaults to float32.
            device (torch.device or str): Where the result is made. Defaults to ``'cuda'``.
        """
        corners = super().single_level_grid_priors(featmap_size, level_idx, dtype, device)
        centres = (corners[:, :2] + corners[:, 2:]) / 2
        sizes = corners[:, 2:] - corners[:, :2]
        centres, sizes = centres.clamp(0, self.input_size), sizes.clamp(0, self.input_size)
        return torch.cat([centres - sizes / 2, centres + sizes / 2], 1)
