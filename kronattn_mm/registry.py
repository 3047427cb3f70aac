"""Registries with the scope ``kronattn_mm``, children of mmengine's.

mmengine imports this module by itself when a config of any library says
``type='kronattn_mm.<Name>'``, so nothing else has to be imported. The layers know nothing of
mmengine and are registered from here.
"""

from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import Registry

from . import layers

MODELS = Registry('model', parent=MMENGINE_MODELS, scope='kronattn_mm',
                  locations=['kronattn_mm.plugging'])
HOOKS = Registry('hook', parent=MMENGINE_HOOKS, scope='kronattn_mm',
                 locations=['kronattn_mm.engine'])

for _name in layers.__all__:
    MODELS.register_module(module=getattr(layers, _name))
