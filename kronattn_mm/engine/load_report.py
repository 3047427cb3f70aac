"""What a checkpoint brought and what it lacked, told apart: upstream's keys, ours, anything else.

mmengine loads what fits and warns of the rest in one breath, so that new layers, whose keys no
plain checkpoint has, look like a mistake, and a mistake looks like new layers. Here what only the
inserted layers explain is expected, and anything else ends the run unless it was allowed.
"""

import copy
import difflib
import fnmatch
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.runner import CheckpointLoader, Runner
from torch import Tensor, nn

from ..plugging.insertion import Insertions
from ..plugging.switching import unwrapped
from ..registry import HOOKS

_SHOWN = 5  # keys named in a message


@dataclass(frozen=True)
class LoadReport:
    """What became of the keys of a model and of a checkpoint.

    Attributes:
        upstream: Number of keys that the model has without what ``Plugged`` put in.
        upstream_loaded: How many of them the checkpoint holds in the right shape.
        ours: Number of keys of inserted layers and of new parts of replaced convolutions.
        ours_loaded: How many of them the checkpoint holds in the right shape.
        missing: Upstream keys that the checkpoint does not have.
        unexpected: Keys of the checkpoint that the model does not have.
        mismatched: Keys with different shapes, with ``'(80, 256) in the checkpoint, (2, 256) in
            the model'``.
        allowed: How many missing, unexpected or mismatched keys are not listed as they are allowed.
    """

    upstream: int
    upstream_loaded: int
    ours: int
    ours_loaded: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: Mapping[str, str]
    allowed: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing happened that the inserted layers or the user do not explain."""
        return not (self.missing or self.unexpected or self.mismatched)

    def lines(self) -> list[str]:
        """Say it in three lines."""
        new = self.ours - self.ours_loaded
        loaded = f' ({self.ours_loaded} more of ours loaded)' if self.ours_loaded else ''
        return [
            f'upstream keys loaded: {self.upstream_loaded} of {self.upstream}',
            f'new keys, all ours: {new}{loaded}',
            'anything else: '
            + (self._others() or 'nothing')
            + (f' (and {self.allowed} that are allowed)' if self.allowed else ''),
        ]

    def _others(self) -> str:
        parts = []
        for text, keys in (
            ('not in the checkpoint', self.missing),
            ('not in the model', self.unexpected),
        ):
            if keys:
                parts.append(f'{len(keys)} {text}: {_some(keys)}')
        if self.mismatched:
            parts.append(
                f'{len(self.mismatched)} of another shape: '
                + _some([f'{key} {shapes}' for key, shapes in self.mismatched.items()])
            )
        return '; '.join(parts)

    def explain(self) -> str:
        """Say what is wrong and how to go on, for an error."""
        near = ''
        if self.missing and self.unexpected:
            match = difflib.get_close_matches(self.missing[0], self.unexpected, n=1)
            near = f' Nearest in the checkpoint to {self.missing[0]}: {match[0]}.' if match else ''
        first = (*self.missing, *self.mismatched, *self.unexpected)[0]
        part = first.rpartition('.')[0] or first
        return (
            f'the checkpoint does not fit the model: {self._others()}.{near} If that is meant, '
            f'allow it by name: allow=[{part!r}, ...]'
        )


def loaded_keys(
    model: nn.Module, checkpoint: Mapping[str, Any] | str | Path, allow: Sequence[str] = ()
) -> LoadReport:
    """Find out what loading a checkpoint into a model would do; the model is left alone.

    Conversions of old checkpoints that the classes themselves make are taken into account.

    Args:
        model (nn.Module): A model, or a part of one.
        checkpoint (dict or path): A state dict, a checkpoint with a ``state_dict``, or a file or
            address that mmengine can load.
        allow (Sequence[str]): Keys that may be missing, left over or of another shape: dotted
            paths, or patterns in which ``*`` stands for anything.

    Raises:
        TypeError: If the checkpoint holds no state dict, or ``allow`` is not a list.
    """
    if isinstance(allow, str):
        raise TypeError(f'allow must be a list of patterns, got {allow!r}')
    state = _state_dict(checkpoint)
    skeleton = _skeleton(model)
    own = skeleton.state_dict()
    ours = {key for prefix in _own_prefixes(model) for key in own if key.startswith(prefix)}
    mismatched = {
        key: f'({_shape(value)} in the checkpoint, {_shape(own[key])} in the model)'
        for key, value in state.items()
        if key in own and value.shape != own[key].shape
    }
    for key in mismatched:
        del state[key]
    try:
        with warnings.catch_warnings():
            # torch warns of each counter that a batch norm makes up for an old checkpoint.
            warnings.simplefilter('ignore')
            result = skeleton.load_state_dict(
                {key: value.to('meta') for key, value in state.items()}, strict=False
            )
    except RuntimeError as error:  # of another shape after a conversion
        raise TypeError(f'the checkpoint cannot be loaded: {error}') from error
    lost = {key for key in result.missing_keys if key not in mismatched}
    # mmengine does not mind either: old checkpoints have no counters.
    lost = {key for key in lost if key in ours or not key.endswith('num_batches_tracked')}
    others = [
        sorted(key for key in lost if key not in ours),
        list(result.unexpected_keys),
        list(mismatched),
    ]
    kept = [[key for key in keys if not _matches(key, allow)] for keys in others]
    gone = set(result.missing_keys) | set(mismatched)
    return LoadReport(
        upstream=len(own) - len(ours),
        upstream_loaded=len(own.keys() - ours - gone),
        ours=len(ours),
        ours_loaded=len(ours & state.keys()),
        missing=tuple(kept[0]),
        unexpected=tuple(kept[1]),
        mismatched={key: mismatched[key] for key in kept[2]},
        allowed=sum(map(len, others)) - sum(map(len, kept)),
    )


def check_loaded_keys(
    model: nn.Module, checkpoint: Mapping[str, Any] | str | Path, allow: Sequence[str] = ()
) -> LoadReport:
    """Like :func:`loaded_keys`, but an error if something is neither loaded nor ours nor allowed.

    Raises:
        TypeError: As there.
        ValueError: If keys are missing, left over or of another shape; the message names them.
    """
    report = loaded_keys(model, checkpoint, allow)
    if not report.ok:
        raise ValueError(report.explain())
    return report


@HOOKS.register_module()
class CheckLoadedKeysHook(Hook):
    """Say after every load what was loaded, and end the run if something unexplained was not.

    It looks at ``load_from``, at ``--resume`` and at the checkpoint of a test. Weights that a part
    takes from an ``init_cfg`` with ``type='Pretrained'`` never pass a hook; they are looked at
    beforehand, and what such files hold in excess (a classifier's head) is no error there.

    Args:
        allow (Sequence[str]): Keys that may be missing, left over or of another shape: dotted
            paths such as ``'roi_head.bbox_head.fc_cls'``, or patterns in which ``*`` stands for
            anything. Defaults to none.

    Raises:
        TypeError: If ``allow`` is not a list of patterns.
        ValueError: When a checkpoint is loaded that does not fit; the message names the keys.
    """

    def __init__(self, allow: Sequence[str] = ()) -> None:
        if isinstance(allow, str) or not all(isinstance(word, str) for word in allow):
            raise TypeError(f'allow must be a list of patterns, got {allow!r}')
        self.allow = allow

    def before_run(self, runner: Runner) -> None:
        """Look at what ``init_cfg`` is about to load, if the run trains."""
        if not isinstance(runner.optim_wrapper, OptimWrapper):
            return
        for path, module, config in _pretrained(unwrapped(runner.model)):
            report = loaded_keys(module, _with_prefix(config), self.allow)
            _log(f'init_cfg of {path or "the model"} from {config["checkpoint"]}', report)
            if report.missing or report.mismatched:
                raise ValueError(f'init_cfg of {path or "the model"}: {report.explain()}')

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Look at what is about to go into the model."""
        report = loaded_keys(unwrapped(runner.model), checkpoint, self.allow)
        trains = isinstance(runner.optim_wrapper, OptimWrapper)
        _log('checkpoint', report)
        if not report.ok:
            raise ValueError(report.explain())
        if not trains and report.ours > report.ours_loaded:
            print_log(
                f'{report.ours - report.ours_loaded} keys of inserted layers are not in the '
                'checkpoint: what is tested has untrained layers',
                'current',
                logging.WARNING,
            )


def _log(what: str, report: LoadReport) -> None:
    print_log('\n'.join([f'{what}:', *(f'    {line}' for line in report.lines())]), 'current')


def _skeleton(model: nn.Module) -> nn.Module:
    """Copy a model without its numbers, so that nothing is doubled on a GPU."""
    empty = {
        id(parameter): nn.Parameter(
            parameter.detach().to('meta'), requires_grad=parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    empty |= {id(buffer): buffer.detach().to('meta') for buffer in model.buffers()}
    return copy.deepcopy(model, empty)


def _state_dict(checkpoint: Mapping[str, Any] | str | Path) -> dict[str, Tensor]:
    """Return the weights of a checkpoint without the prefix of a wrapper."""
    if isinstance(checkpoint, (str, Path)):
        checkpoint = CheckpointLoader.load_checkpoint(str(checkpoint), map_location='cpu')
    if not isinstance(checkpoint, Mapping):
        raise TypeError(f'a checkpoint is a dict, got a {type(checkpoint).__name__}')
    state = checkpoint.get('state_dict', checkpoint)
    if not isinstance(state, Mapping):
        raise TypeError(f'`state_dict` of the checkpoint is a {type(state).__name__}, not a dict')
    tensors = {
        re.sub(r'^module\.', '', key): value
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
    if not tensors:
        raise TypeError(
            'the checkpoint holds no weights; its entries are '
            + (_some(list(map(str, checkpoint))) or 'none')
        )
    return tensors


def _own_prefixes(model: nn.Module) -> Iterator[str]:
    """Yield what keys begin with that ``Plugged`` brought in."""
    for path, module in model.named_modules():
        if isinstance(module, Insertions):
            yield f'{path}.'
            owner = path.rpartition('.')[0]
            for name, replacement in module.replaced.items():
                conv = f'{owner}.{name}' if owner else name
                for key in replacement.added_keys():
                    yield f'{conv}.{key}'


def _pretrained(model: nn.Module) -> Iterator[tuple[str, nn.Module, Mapping[str, Any]]]:
    for path, module in model.named_modules():
        configs = getattr(module, 'init_cfg', None) or []
        for config in [configs] if isinstance(configs, Mapping) else configs:
            if (
                isinstance(config, Mapping)
                and config.get('type') == 'Pretrained'
                and config.get('checkpoint')
            ):
                yield path, module, config


def _with_prefix(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights that an ``init_cfg`` names, those under its prefix alone if it has one."""
    checkpoint = CheckpointLoader.load_checkpoint(config['checkpoint'], map_location='cpu')
    prefix = config.get('prefix')
    if not prefix:
        return checkpoint
    prefix = prefix.rstrip('.') + '.'
    state = checkpoint.get('state_dict', checkpoint)
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def _matches(key: str, allow: Iterable[str]) -> bool:
    return any(
        key == word or key.startswith(f'{word}.') or fnmatch.fnmatchcase(key, word)
        for word in allow
    )


def _shape(tensor: Tensor) -> str:
    return 'x'.join(map(str, tensor.shape)) or 'a number'


def _some(keys: Sequence[str]) -> str:
    rest = len(keys) - _SHOWN
    return ', '.join(keys[:_SHOWN]) + (f' and {rest} more' if rest > 0 else '')
