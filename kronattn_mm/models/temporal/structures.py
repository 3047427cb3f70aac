"""What is known of one window of a video."""

from mmengine.structures import BaseDataElement, InstanceData


class SegmentSample(BaseDataElement):
    """A window of a video with its true and its predicted segments.

    Metainfo: ``video`` (str), ``window`` (first frame and the one after the last), ``fps``,
    ``num_frames`` (of the video), ``frames_folder``, ``frame_template``, ``first_frame``, and
    ``truth``, a dict of the whole video's ``segments`` ``(n, 2)`` in seconds and ``labels``
    ``(n,)``.
    """

    @property
    def gt_instances(self) -> InstanceData:
        """True segments: ``segments`` ``(n, 2)`` in frames of the window, ``labels`` ``(n,)``."""
        return self._gt_instances

    @gt_instances.setter
    def gt_instances(self, value: InstanceData) -> None:
        self.set_field(value, '_gt_instances', dtype=InstanceData)

    @property
    def pred_instances(self) -> InstanceData:
        """Predictions: ``segments`` as above, ``scores`` ``(n,)``, ``labels`` ``(n,)``."""
        return self._pred_instances

    @pred_instances.setter
    def pred_instances(self, value: InstanceData) -> None:
        self.set_field(value, '_pred_instances', dtype=InstanceData)
