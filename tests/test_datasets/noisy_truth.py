"""A detector for tests of evaluation: what is there, moved, mislabelled, left out and made up.

Imported by the tools themselves, as ``custom_imports`` of a config.
"""

import zlib

import numpy as np
import torch
from mmdet.registry import MODELS
from mmengine.model import BaseModel
from mmengine.structures import InstanceData


@MODELS.register_module()
class NoisyTruth(BaseModel):
    """Return the truth of a picture, with an amount of noise that depends on its id alone.

    Args:
        classes (int): Number of classes.
        noise (float): 0 returns the truth itself.
        masks (bool): Whether to return masks.
    """

    def __init__(self, classes: int, noise: float, masks: bool = False) -> None:
        super().__init__(data_preprocessor=dict(type='DetDataPreprocessor'))
        self.classes, self.noise, self.masks = classes, noise, masks

    def forward(self, inputs, data_samples=None, mode='tensor'):
        for sample in data_samples:
            sample.pred_instances = self.detect(sample)
        return data_samples

    def detect(self, sample) -> InstanceData:
        random = np.random.default_rng(zlib.crc32(str(sample.img_id).encode()))
        truth = sample.gt_instances
        boxes, labels = truth.bboxes.numpy().astype(np.float64), truth.labels.numpy()
        masks = truth.masks.to_ndarray().astype(bool) if self.masks else None
        scores = np.ones(len(boxes))
        if self.noise:
            ignored = sample.ignored_instances
            if masks is None:  # difficult objects are found too, and must not count
                boxes = np.concatenate([boxes, ignored.bboxes.numpy()])
                labels = np.concatenate([labels, ignored.labels.numpy()])
            kept = np.flatnonzero(random.random(len(boxes)) > 0.2)
            kept = np.concatenate([kept, kept[: len(kept) // 3]])  # some are found twice
            boxes, labels = boxes[kept], labels[kept].copy()
            sides = (boxes[:, 2:] - boxes[:, :2]).repeat(2, 0).reshape(-1, 4)
            boxes = boxes + self.noise * sides * random.normal(size=boxes.shape)
            wrong = random.random(len(labels)) < 0.1
            labels[wrong] = random.integers(0, self.classes, wrong.sum())
            scores = random.random(len(boxes))
            if masks is not None:
                masks = np.stack([np.roll(masks[i], 3, 1) for i in kept]) if len(kept) else masks
        found = InstanceData(
            bboxes=torch.tensor(boxes.reshape(-1, 4), dtype=torch.float32),
            scores=torch.tensor(scores, dtype=torch.float32),
            labels=torch.tensor(labels, dtype=torch.int64),
        )
        if masks is not None:
            found.masks = torch.from_numpy(masks[: len(boxes)])
        return found
