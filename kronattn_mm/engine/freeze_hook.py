"""A hook that trains only what was inserted, and whatever else is named, and freezes the rest.

mmengine wraps the model for several processes and builds the optimizer before it calls any hook.
Both are put right at the start of the run: frozen parameters leave the optimizer's groups, and the
wrapper, which would wait for their gradients for ever, is made anew. Both are still fresh then.
"""

import difflib
import fnmatch
import gc
import logging
from collections.abc import Iterable, Sequence

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from ..plugging import switches
from ..registry import HOOKS


@HOOKS.register_module()
class FreezeHook(Hook):
    """Train only the parameters that are named; no other parameter or norm statistic changes.

    Frozen parameters get no gradient and are in no optimizer; frozen norms stay in eval mode, and
    so keep their statistics, whatever calls ``train()``. Other modules that change buffers of
    their own while they train (a loss that counts its samples) are left alone, as is dropout. The
    state dict stays whole, so checkpoints, EMA and resuming work as ever.

    A name stands for the parameters in whose dotted path its components occur side by side:
    ``'attention'`` means ``neck.attention.fpn1.query.weight`` and not
    ``gen_attention_block.weight``. Inserted layers and the new parts of replaced convolutions all
    lie under ``attention``. ``*`` stands for anything within one component.

    Args:
        train (Sequence[str]): What to train. Defaults to ``('attention', )``.
        also (Sequence[str]): What else to train, such as ``['roi_head.bbox_head.fc_cls']``.
            Defaults to nothing.

    Raises:
        TypeError: If ``train`` or ``also`` is not a list of names; at the start of the run, if the
            model is wrapped by something that is not a DistributedDataParallel.
        ValueError: At the start of the run, if a name matches no parameter (the message has the
            nearest that do) or everything that matches was frozen by the model itself.
    """

    priority = 'VERY_HIGH'  # before EMAHook copies the model

    def __init__(self, train: Sequence[str] = ('attention',), also: Sequence[str] = ()) -> None:
        for name, words in (('train', train), ('also', also)):
            if (
                isinstance(words, str)
                or not isinstance(words, Sequence)
                or not all(isinstance(word, str) and word for word in words)
            ):
                raise TypeError(
                    f'{name} must be a list of names such as ["attention"], got {words!r}'
                )
        self.words = [*train, *also]
        if not self.words:
            raise ValueError('train and also are empty, so that nothing would be trained')
        self._frozen_norms: list[nn.Module] = []

    def before_run(self, runner: Runner) -> None:
        """Freeze, if this run trains."""
        if not isinstance(runner.optim_wrapper, (OptimWrapper, OptimWrapperDict)):
            return  # a validation or a test by itself
        wrapped = is_model_wrapper(runner.model)
        if wrapped and not isinstance(runner.model, DistributedDataParallel):
            raise TypeError(
                f'FreezeHook cannot make a {type(runner.model).__name__} anew, only a '
                'DistributedDataParallel'
            )
        model = runner.model.module if wrapped else runner.model
        self._frozen_norms = freeze_except(model, self.words)
        drop_frozen(runner.optim_wrapper)
        if wrapped:
            runner.model = None
            gc.collect()  # the old wrapper takes its hooks off the parameters when it goes
            runner.model = runner.wrap_model(runner.cfg.get('model_wrapper_cfg'), model)
            # Conversion to SyncBN, if the config asks for it, has made the norms anew.
            self._frozen_norms = frozen_norms(model, self.words)
        print_log(trainable_line(model), logger='current')

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: dict | tuple | list | None = None
    ) -> None:
        """Put frozen norms back into eval mode, after any ``train()`` of the loop."""
        for norm in self._frozen_norms:
            norm.training = False


def freeze_except(model: nn.Module, words: Iterable[str]) -> list[nn.Module]:
    """Freeze what no word names, and return the norms that must stay in eval mode.

    Args:
        model (nn.Module): A whole model, not wrapped.
        words (Iterable[str]): Names of what to train; see :class:`FreezeHook`.

    Raises:
        ValueError: As in :class:`FreezeHook`.
    """
    words = list(words)
    trained = {name for word in words for name in matching_parameters(model, word)}
    parameters = dict(model.named_parameters())
    kept = [name for name in sorted(trained) if not parameters[name].requires_grad]
    if len(kept) == len(trained):
        raise ValueError(
            f'all {len(kept)} parameters that {_listed(words)} names were frozen by '
            'the model itself (frozen_stages?), so that nothing would be trained'
        )
    if kept:
        print_log(
            f'FreezeHook: {len(kept)} parameters to train stay frozen, as the model itself '
            f'froze them (frozen_stages?), such as {kept[0]}',
            'current',
            logging.WARNING,
        )
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.requires_grad_(False)
    return frozen_norms(model, words)


def matching_parameters(model: nn.Module, word: str) -> list[str]:
    """Return the names of the parameters that ``word`` names.

    Raises:
        ValueError: If there are none.
    """
    names = [name for name, _ in model.named_parameters()]
    found = [name for name in names if names_path(word, name)]
    if found:
        return found
    # Nearest among the single components and all beginnings of paths that mean something.
    choices: dict[str, None] = {}
    for name in names:
        parts = name.split('.')
        choices.update(dict.fromkeys(parts))
        choices.update(dict.fromkeys('.'.join(parts[:end]) for end in range(2, len(parts) + 1)))
    choices = {choice: None for choice in choices if not choice.isdigit()}
    near = difflib.get_close_matches(word, choices, n=3)
    containing = [choice for choice in choices if word in choice.split('.')[-1]][:3]
    near = list(dict.fromkeys(near + containing))[:3]
    hint = (
        f'did you mean {" or ".join(map(repr, near))}?'
        if near
        else f'the model consists of {", ".join(name for name, _ in model.named_children())}'
    )
    raise ValueError(
        f'{word!r} matches no parameter of {type(model).__name__}; {hint} Names are '
        'compared by whole components of dotted paths'
    )


def names_path(word: str, path: str) -> bool:
    """Whether the components of ``word`` occur side by side in the dotted ``path``."""
    words, parts = word.split('.'), path.split('.')
    return any(
        all(map(fnmatch.fnmatchcase, parts[start : start + len(words)], words))
        for start in range(len(parts) - len(words) + 1)
    )


def frozen_norms(model: nn.Module, words: Sequence[str]) -> list[nn.Module]:
    """Return the norms with statistics that no word names, and see that nothing wakes them."""
    frozen = [
        module
        for path, module in model.named_modules()
        if isinstance(module, _NormBase)
        and not any(parameter.requires_grad for parameter in module.parameters())
        and not any(names_path(word, path) for word in words)
    ]
    ids = {id(norm) for norm in frozen}
    for part in switches(model).values():
        if any(id(module) in ids for module in part.module.modules()):
            # Norms in what was inserted follow its own switch at every forward pass.
            part.norm_eval = True
    return frozen


def drop_frozen(optim_wrapper: OptimWrapper | OptimWrapperDict) -> None:
    """Take parameters without gradient out of optimizers that have not made a step yet.

    Groups that become empty stay: learning-rate schedulers know the groups by their number.
    """
    wrappers = (
        optim_wrapper.values() if isinstance(optim_wrapper, OptimWrapperDict) else [optim_wrapper]
    )
    for wrapper in wrappers:
        optimizer = wrapper.optimizer
        for group in optimizer.param_groups:
            for parameter in group['params']:
                if not parameter.requires_grad:
                    optimizer.state.pop(parameter, None)
            group['params'] = [
                parameter for parameter in group['params'] if parameter.requires_grad
            ]


def trainable_line(model: nn.Module) -> str:
    """Say how much of a model is trained: ``'trainable 1.12 M of 45.3 M, 2.5 %'``."""
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return (
        f'trainable {_millions(trained)} of {_millions(total)}, '
        f'{_percent(100 * trained / max(total, 1))} %'
    )


def _millions(count: int) -> str:
    for size, unit in ((1e6, ' M'), (1e3, ' k')):
        if count >= size:
            return f'{count / size:.3g}{unit}'
    return str(count)


def _percent(share: float) -> str:
    return f'{share:.1f}' if share >= 0.1 else f'{share:.2g}'


def _listed(words: Sequence[str]) -> str:
    return ', '.join(map(repr, words))
