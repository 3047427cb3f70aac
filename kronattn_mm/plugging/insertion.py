"""An inserted layer: the forward hook that applies it, and the container that owns it.

The layers are children of the module they were inserted into, under ``attention``, so that no
name of the module itself changes. The hook is a bound method: a copy of the model (mmengine's EMA
takes one) then calls the copy of the layer, where a closure would go on calling the original.
"""

from typing import Any

from mmengine.model import BaseModule, ModuleDict
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from .convs import Replacement
from .points import Point
from .switch import Switch


class Insertion(Switch):
    """One inserted layer, where it sits and how it is run.

    Args:
        point (Point): Where the layer was inserted.
        layer (nn.Module): The layer; ``attention.<point>`` of the module it was inserted into.
        config (dict): What it was built from, ``in_channels`` included.
        shape (tuple[int, ...], optional): Shape of the small input with which it was tried out.
        norm_eval (bool): Keep the batch norms in the layer in eval mode. Defaults to False.
        with_cp (bool): Recompute the layer in the backward pass instead of keeping what it needs
            there (gradient checkpointing). A batch norm in it then sees each batch twice. Defaults
            to False.
        enabled (bool): Whether the layer is applied; see :class:`Switch`. Defaults to True.
        at (str): The words with which the config named the point. Defaults to its name.
    """

    def __init__(
        self,
        point: Point,
        layer: nn.Module,
        config: dict[str, Any],
        shape: tuple[int, ...] | None = None,
        norm_eval: bool = False,
        with_cp: bool = False,
        enabled: bool = True,
        at: str = '',
    ) -> None:
        self.point = point.name
        self.key = point.key
        self.path = point.path
        self.index = point.index
        self.layer = layer
        self.config = config
        self.shape = shape
        self.norm_eval = norm_eval
        self.with_cp = with_cp
        self.enabled = enabled
        self.at = at or point.name

    @property
    def module(self) -> nn.Module:
        """The layer."""
        return self.layer

    def apply(self, module: nn.Module, args: tuple, output: Any) -> Any:
        """Forward hook of a submodule: pass its output through the layer."""
        return self.run(output)

    def run(self, x: Tensor) -> Tensor:
        """Pass one feature map through the layer, as far as it is switched on."""
        if not self.enabled:
            return x
        if self.with_cp and x.requires_grad:
            # Re-entrant checkpointing fails under DistributedDataParallel.
            y = checkpoint(self.layer, x, use_reentrant=False)
        else:
            y = self.layer(x)
        # The difference to the input is what was added, whoever wrote the layer. At full strength
        # the sum would differ from y in the last bits.
        return y if self.scale == 1 else x + self.scale * (y - x)

    def __repr__(self) -> str:
        return (
            f'Insertion(point={self.point!r}, layer={type(self.layer).__name__}, '
            f'enabled={self.enabled}, scale={self.scale})'
        )


class Insertions(ModuleDict):
    """Child ``attention`` of a plugged module: its inserted layers by point.

    It is mmengine's ModuleDict and not torch's because ``init_weights`` has to reach the layers:
    it undoes what the ``init_cfg`` of the enclosing module wrote into them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.insertions: dict[str, Insertion] = {}
        self.replaced: dict[str, Replacement] = {}
        # Small file that the layers were loaded from, and the part of it that they are.
        self.weights: tuple[str, str] | None = None

    def add(self, base: nn.Module, point: Point, insertion: Insertion) -> None:
        """Own the layer of ``insertion`` and have it applied at ``point`` of ``base``."""
        on_outputs = any(other.index is not None for other in self.insertions.values())
        self[point.key] = insertion.layer
        self.insertions[point.name] = insertion
        if insertion.index is None:
            base.get_submodule(point.path).register_forward_hook(insertion.apply)
        elif not on_outputs:
            base.register_forward_hook(self.apply_to_outputs)

    def apply_to_outputs(self, module: nn.Module, args: tuple, output: Any) -> Any:
        """Forward hook of the plugged module: pass its chosen outputs through their layers.

        One hook for all of them: torch.compile makes a graph of each hook on the module that it
        is given, and gives up after a few that share their code.
        """
        outputs = list(output)
        for insertion in self.insertions.values():
            if insertion.index is not None:
                if insertion.index >= len(outputs):
                    raise ValueError(
                        f'{insertion.point!r} is not there: {type(module).__name__} '
                        f'returns {len(outputs)} outputs'
                    )
                outputs[insertion.index] = insertion.run(outputs[insertion.index])
        return tuple(outputs) if isinstance(output, tuple) else outputs

    def guard_init_weights(self, base: nn.Module) -> None:
        """Keep a base with an ``init_weights`` of its own from initialising inserted layers.

        BaseModule's method calls :meth:`init_weights` after it has written into everything inside;
        one that loops over all modules instead (PVT's, for example) does not.
        """
        method = getattr(type(base), 'init_weights', None)
        if method is not None and method is not BaseModule.init_weights:
            self._base = (base,)  # in a tuple, or it would become a child of its own child
            base.init_weights = self.init_base_weights

    def init_base_weights(self) -> None:
        """Initialise the base as its class does, then the inserted layers anew."""
        (base,) = self._base
        type(base).init_weights(base)
        configs = getattr(base, 'init_cfg', None) or []
        if 'Pretrained' not in [
            config.get('type') for config in ([configs] if isinstance(configs, dict) else configs)
        ]:
            self.init_weights()

    def init_weights(self) -> None:
        """Give every inserted layer the initialisation that its class lays down, or its file."""
        from .build import build_layer  # build.py needs the registry, which imports this package

        for insertion in self.insertions.values():
            layer = insertion.layer
            if hasattr(layer, 'init_weights'):
                layer.init_weights()
            elif hasattr(layer, 'reset_parameters'):
                layer.reset_parameters()
            else:
                # The constructor is all the initialisation this class has: run it again.
                layer.load_state_dict(build_layer(insertion.config).state_dict())
        if self.weights is not None:
            from .small_file import load_part, read_small_file  # they need what is here

            file, part = self.weights
            load_part(self, read_small_file(file), part)

    def set_norm_modes(self, module: nn.Module, args: tuple) -> None:
        """Forward pre-hook of the plugged module: norms follow the layer or convolution around.

        The ``norm_eval`` of a backbone puts every batch norm inside it into eval mode each time
        ``train()`` is called. Statistics of a norm that has just been inserted are those of
        nothing; it has to learn them.
        """
        for part in (*self.insertions.values(), *self.replaced.values()):
            mode = part.module.training and not part.norm_eval
            for norm in norms(part.module):
                if norm.training != mode:
                    norm.training = mode

    def has_norms(self) -> bool:
        """Return whether :meth:`set_norm_modes` has anything to set."""
        return any(
            norms(part.module) for part in (*self.insertions.values(), *self.replaced.values())
        )


def norms(layer: nn.Module) -> list[nn.Module]:
    """Return the norms in ``layer`` that behave differently in training and evaluation."""
    return [child for child in layer.modules() if isinstance(child, _NormBase)]
