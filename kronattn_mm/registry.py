"""Registries with the scope ``kronattn_mm``, children of mmengine's.

mmengine imports this module by itself when a config of any library says
``type='kronattn_mm.<Name>'``, so nothing else has to be imported. The layers know nothing of
mmengine and are registered from here; whole models are imported when they are first asked for,
since each of them needs one of the libraries and nobody has to have all of them.
"""

import importlib

from mmengine.registry import DATASETS as MMENGINE_DATASETS
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import METRICS as MMENGINE_METRICS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import TASK_UTILS as MMENGINE_TASK_UTILS
from mmengine.registry import TRANSFORMS as MMENGINE_TRANSFORMS
from mmengine.registry import VISUALIZERS as MMENGINE_VISUALIZERS
from mmengine.registry import Registry

from . import layers
from .checkpoint_types import allow_own_checkpoints

# Name and module of what is imported on demand.
_ON_DEMAND = {
    'CIFARMobileNetV2': 'kronattn_mm.models.backbones.cifar_mobilenetv2',
    'KANet': 'kronattn_mm.models.backbones.kanet',
    'MnasNet': 'kronattn_mm.models.backbones.mnasnet',
    'ExpansionMobileNetV2': 'kronattn_mm.models.backbones.expansion_mobilenetv2',
    'SSDLiteNeck': 'kronattn_mm.models.necks.ssdlite_neck',
    'SSDHead': 'kronattn_mm.models.dense_heads.ssd_head',
    'SSDLiteHead': 'kronattn_mm.models.dense_heads.ssdlite_head',
    'ClippedSSDAnchorGenerator': 'kronattn_mm.models.task_modules.clipped_ssd_anchor_generator',
    'DropoutLinearClsHead': 'kronattn_mm.models.cls_heads.dropout_linear_head',
    'AttentionHead': 'kronattn_mm.models.decode_heads.attention_head',
    'DeepLabV2Head': 'kronattn_mm.models.decode_heads.deeplabv2_head',
    'PSMNet': 'kronattn_mm.models.stereo.psmnet',
    'PSMFeatures': 'kronattn_mm.models.stereo.features',
    'PSMAggregation': 'kronattn_mm.models.stereo.aggregation',
    'DisparityHead': 'kronattn_mm.models.stereo.disparity_head',
    'NonLocal3d': 'kronattn_mm.models.stereo.non_local',
    'StereoDataPreprocessor': 'kronattn_mm.models.stereo.data_preprocessor',
    'SceneFlowDataset': 'kronattn_mm.datasets.stereo',
    'KITTIStereoDataset': 'kronattn_mm.datasets.stereo',
    'LoadStereoPair': 'kronattn_mm.datasets.stereo_transforms',
    'LoadDisparity': 'kronattn_mm.datasets.stereo_transforms',
    'RandomCropPair': 'kronattn_mm.datasets.stereo_transforms',
    'PackStereoInputs': 'kronattn_mm.datasets.stereo_transforms',
    'DisparityMetric': 'kronattn_mm.evaluation.disparity',
    'DisparityVisualizer': 'kronattn_mm.visualization.disparity',
    'RC3D': 'kronattn_mm.models.temporal.r_c3d',
    'ResNet3d': 'kronattn_mm.models.temporal.resnet3d',
    'TemporalProposalHead': 'kronattn_mm.models.temporal.proposal_head',
    'SegmentHead': 'kronattn_mm.models.temporal.segment_head',
    'ClipPreprocessor': 'kronattn_mm.models.temporal.data_preprocessor',
    'UntrimmedVideoDataset': 'kronattn_mm.datasets.untrimmed_videos',
    'LoadFrames': 'kronattn_mm.datasets.clip_transforms',
    'ResizeFrames': 'kronattn_mm.datasets.clip_transforms',
    'CropFrames': 'kronattn_mm.datasets.clip_transforms',
    'FlipFrames': 'kronattn_mm.datasets.clip_transforms',
    'PackSegments': 'kronattn_mm.datasets.clip_transforms',
    'TemporalMAP': 'kronattn_mm.evaluation.temporal_map',
}


class OnDemandRegistry(Registry):
    """A registry that imports the module of some names when one of them is asked for."""

    def get(self, key: str) -> type | None:
        """Return what is registered under ``key``; see mmengine's Registry."""
        if key in _ON_DEMAND and key not in self._module_dict:
            importlib.import_module(_ON_DEMAND[key])
        return super().get(key)


MODELS = OnDemandRegistry(
    'model', parent=MMENGINE_MODELS, scope='kronattn_mm', locations=['kronattn_mm.plugging']
)
TASK_UTILS = OnDemandRegistry('task util', parent=MMENGINE_TASK_UTILS, scope='kronattn_mm')
DATASETS = OnDemandRegistry('dataset', parent=MMENGINE_DATASETS, scope='kronattn_mm')
TRANSFORMS = OnDemandRegistry('transform', parent=MMENGINE_TRANSFORMS, scope='kronattn_mm')
METRICS = OnDemandRegistry('metric', parent=MMENGINE_METRICS, scope='kronattn_mm')
VISUALIZERS = OnDemandRegistry('visualizer', parent=MMENGINE_VISUALIZERS, scope='kronattn_mm')
HOOKS = Registry(
    'hook', parent=MMENGINE_HOOKS, scope='kronattn_mm', locations=['kronattn_mm.engine']
)

for _name in layers.__all__:
    MODELS.register_module(module=getattr(layers, _name))

allow_own_checkpoints()
