"""Disparities as pictures: the left view, the truth, the estimate and where the two differ."""

from pathlib import Path

import numpy as np
from mmengine.dist import master_only
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from ..registry import VISUALIZERS
from .report import replacing

_DISPARITY_COLOURS, _ERROR_COLOURS = 'viridis', 'magma'
_LARGEST_ERROR = 5.0  # pixels; what is further off has the same colour
_UNKNOWN = '#b0b0b0'
_DPI = 100


def draw_disparity(
    left: np.ndarray, prediction: np.ndarray, truth: np.ndarray | None = None, title: str = ''
) -> np.ndarray:
    """Draw a left view, its estimated disparities and, if they are known, truth and error.

    Truth and estimate have the same colours; pixels without a truth are grey.

    Args:
        left (np.ndarray): RGB, ``(H, W, 3)``, uint8.
        prediction (np.ndarray): Disparities in pixels, ``(H, W)``.
        truth (np.ndarray, optional): The same, NaN where unknown. Defaults to None.
        title (str): Printed above. Defaults to ''.

    Returns:
        np.ndarray: The picture, RGB uint8.

    Raises:
        ValueError: If the maps do not have the size of the view.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for name, values in (('prediction', prediction), ('truth', truth)):
        if values is not None and values.shape != left.shape[:2]:
            raise ValueError(
                f'{name} has the shape {values.shape}, the view {left.shape[:2]}: they must agree'
            )
    shown = [values[np.isfinite(values)] for values in (prediction, truth) if values is not None]
    top = max((float(values.max()) for values in shown if values.size), default=1.0)
    scale = dict(cmap=colormaps[_DISPARITY_COLOURS].with_extremes(bad=_UNKNOWN), vmin=0, vmax=top)
    panels = [('left view', left, {}), ('estimate (pixels)', prediction, scale)]
    if truth is not None:
        error = np.abs(prediction - truth)
        known = np.isfinite(error)
        mean = f', mean {error[known].mean():.2f}' if known.any() else ''
        colours = colormaps[_ERROR_COLOURS].with_extremes(bad=_UNKNOWN)
        limits = dict(cmap=colours, vmin=0, vmax=_LARGEST_ERROR)
        panels.insert(1, ('truth (pixels)', truth, scale))
        panels.append((f'error (pixels{mean})', error, limits))
    rows = len(panels) // 2
    width = 9.0
    height = rows * (0.45 * width * left.shape[0] / left.shape[1] + 0.3) + 0.3
    figure = Figure((width, height), dpi=_DPI, layout='constrained')
    canvas = FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=9)
    for axes, (name, values, options) in zip(
        figure.subplots(rows, 2, squeeze=False).flat, panels, strict=True
    ):
        image = axes.imshow(values, interpolation='nearest', **options)
        axes.set_title(name, fontsize=9)
        axes.set_axis_off()
        if options:
            over = 'max' if options['vmax'] == _LARGEST_ERROR else 'neither'
            bar = figure.colorbar(image, cax=axes.inset_axes([1.02, 0, 0.03, 1]), extend=over)
            bar.ax.tick_params(labelsize=7)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@VISUALIZERS.register_module()
class DisparityVisualizer(Visualizer):
    """mmengine's visualizer with an ``add_datasample`` that draws disparities.

    Arguments are those of mmengine's ``Visualizer``. The hooks that draw samples of other models
    (mmdet's ``DetVisualizationHook``, ``kronattn_mm.ValidationPictures``) work with it.
    """

    @master_only
    def add_datasample(
        self,
        name: str,
        image: np.ndarray,
        data_sample: BaseDataElement | None = None,
        draw_gt: bool = True,
        draw_pred: bool = True,
        show: bool = False,
        wait_time: float = 0,
        out_file: str | Path | None = None,
        pred_score_thr: float = 0,
        step: int = 0,
    ) -> None:
        """Draw a sample and show it, write it to a file or hand it to the backends.

        Args:
            name (str): Name of the picture.
            image (np.ndarray): Left view, RGB, ``(H, W, 3)``, uint8.
            data_sample (BaseDataElement, optional): With ``pred_disparity`` and perhaps
                ``gt_disparity``. Without it the view alone is added.
            draw_gt (bool): Draw the truth and the error, if known. Defaults to True.
            draw_pred (bool): Draw the estimate; nothing but the view is drawn without. Defaults to
                True.
            show (bool): Show it in a window. Defaults to False.
            wait_time (float): Seconds to show it; 0 waits for a key. Defaults to 0.
            out_file (str or Path, optional): File to write instead of adding it to the backends.
            pred_score_thr (float): Not used: disparities have no scores. mmdet's hook gives it.
            step (int): Step for the backends. Defaults to 0.
        """
        picture = image.astype(np.uint8)
        if data_sample is not None and draw_pred and 'pred_disparity' in data_sample:
            truth = data_sample.get('gt_disparity') if draw_gt else None
            picture = draw_disparity(
                picture,
                data_sample.pred_disparity.detach().cpu().numpy(),
                None if truth is None else truth.detach().cpu().numpy(),
                Path(data_sample.get('img_path', name)).name,
            )
        self.set_image(picture)
        if show:
            self.show(picture, win_name=name, wait_time=wait_time)
        if out_file is None:
            self.add_image(name, picture, step)
            return
        from PIL import Image

        Path(out_file).parent.mkdir(parents=True, exist_ok=True)
        with replacing(out_file) as temporary:
            Image.fromarray(picture).save(temporary, format='PNG')
