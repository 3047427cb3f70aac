"""The small file: what was plugged into a model, alone, to put onto a plain model anywhere.

A safetensors file, which holds tensors and text and nothing that runs. The tensors have their keys
in the whole model. The text (``metadata``) is JSON under these names:

===============  ===================================================================================
``kronattn_mm``  version of this format
``parts``        what was plugged in where, as :func:`.spec.spec_of` describes it
``base``         class and config of the model, fingerprints of its keys and shapes (``shapes``) and
                 of its weights, and what of them moved during training, if that is known
``extra``        modules (``also``) and batch norms (``norms``) of the base that are in the file
``versions``     of the packages with which it was written
``metrics``      as measured, by whoever wrote the file
``licence``      of the weights
===============  ===================================================================================

With the plain weights that the layers were trained on, if those were frozen, the file gives the
trained model back bit for bit.
"""

import difflib
import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.logging import print_log
from torch import Tensor, nn

from .base_identity import (
    base_state,
    fingerprint,
    moved_from,
    norm_keys,
    shapes_of,
    weights_fingerprint,
)
from .insertion import Insertions
from .points import abbreviated_paths
from .removal import added_keys, unplug
from .spec import differences, parts_of, plug_spec, spec_of
from .switching import unwrapped

FORMAT = '1'
_TEXTS = ('parts', 'base', 'extra', 'versions', 'metrics', 'licence')
_PACKAGES = ('kronattn_mm', 'torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')


class SmallFileError(ValueError):
    """A file that is none of ours, is damaged or does not fit; the message is for the user."""


@dataclass(frozen=True)
class SmallFile:
    """Content of a small file; see the module for what the fields hold."""

    tensors: dict[str, Tensor]
    parts: list[dict[str, Any]]
    base: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=lambda: dict(also=[], norms=False))
    versions: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    licence: str = 'not stated'

    def save(self, path: str | Path) -> None:
        """Write the file under a temporary name, and rename it."""
        check_safetensors()
        from safetensors.torch import save_file

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = {name: json.dumps(getattr(self, name)) for name in _TEXTS}
        part = path.with_name(f'.{path.name}.{os.getpid()}.part')
        try:
            save_file(
                {
                    key: value.detach().cpu().contiguous().clone()
                    for key, value in self.tensors.items()
                },
                part,
                dict(format='pt', kronattn_mm=FORMAT, **texts),
            )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@dataclass(frozen=True)
class Attached:
    """What became of a small file that was loaded.

    Attributes:
        loaded: Number of tensors.
        same_base: Whether the base has the very weights that the layers were trained on.
    """

    loaded: int
    same_base: bool


def extract_attention(
    model: nn.Module,
    *,
    config: str = '',
    plain: Mapping[str, Any] | None = None,
    also: Sequence[str] = (),
    include_norms: bool = False,
    allow_moved: bool = False,
    metrics: Mapping[str, float] | None = None,
    licence: str = 'not stated',
    state: Mapping[str, Tensor] | None = None,
) -> SmallFile:
    """Take what was plugged into a model, with everything needed to plug it in elsewhere.

    Args:
        model (nn.Module): A whole trained model.
        config (str): Name of the config of the model, or of its base, for whoever reads the file.
        plain (Mapping, optional): State dict of the plain checkpoint that training started from,
            or its :func:`.base_identity.digests`. What of the base moved since is then recorded;
            otherwise the file says that it is not known.
        also (Sequence[str]): Dotted paths of modules of the base to put into the file as well,
            such as a head that was trained too.
        include_norms (bool): Put all batch norms of the base into the file. Defaults to False.
        allow_moved (bool): Write a file even if something of the base moved that is not in it, so
            that it does not give the trained model back. Defaults to False.
        metrics (Mapping, optional): What was measured.
        licence (str): Licence of the weights.
        state (Mapping, optional): State dict to take the tensors from, such as an average over
            time. Defaults to the model's.

    Raises:
        SmallFileError: If nothing is plugged in, a module of ``also`` is not there, or the base
            moved and ``allow_moved`` is not set.
        ValueError: If a layer's class is not registered, or ``plain`` is of another model.
    """
    model = unwrapped(model)
    keys = added_keys(model)
    if not keys:
        raise SmallFileError(f'nothing is inserted into this {type(model).__name__}')
    state = dict(model.state_dict() if state is None else state)
    base = base_state(model, state)
    also_keys = keys_of_modules(base, also, type(model).__name__)
    extra_keys = set(also_keys) | (norm_keys(model) & set(base) if include_norms else set())
    moved = None
    if plain is not None:
        found = moved_from(plain, model, base)
        left = [key for key in (*found.statistics, *found.weights) if key not in extra_keys]
        if left and not allow_moved:
            raise SmallFileError(_moved_message(found, left))
        moved = dict(
            statistics=len(found.statistics), weights=len(found.weights), not_in_file=len(left)
        )
    return SmallFile(
        tensors={key: state[key] for key in state if key in set(keys) or key in extra_keys},
        parts=spec_of(model),
        base=dict(
            model=type(model).__name__,
            config=config,
            fingerprint=fingerprint(shapes_of(base)),
            weights=weights_fingerprint(base),
            moved=moved,
            shapes=shapes_of(base),
        ),
        extra=dict(also=list(also), norms=include_norms),
        versions=package_versions(),
        metrics={name: float(value) for name, value in (metrics or {}).items()},
        licence=licence,
    )


def save_attention(model: nn.Module, path: str | Path, **options: Any) -> SmallFile:
    """Write a small file of what was plugged into a model.

    Args:
        model (nn.Module): A whole trained model.
        path (str or Path): File to write, by custom ``*.safetensors``.
        **options: As of :func:`extract_attention`, which checks them.

    Raises:
        SmallFileError: As :func:`extract_attention`.
    """
    content = extract_attention(model, **options)
    content.save(path)
    return content


def read_small_file(path: str | Path) -> SmallFile:
    """Read a small file.

    Raises:
        ImportError: If safetensors is not installed.
        SmallFileError: If the file is missing, damaged, or none of ours.
    """
    check_safetensors()
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise SmallFileError(f'there is no file {path}')
    try:
        with safe_open(path, 'pt') as content:
            texts = content.metadata() or {}
            tensors = {key: content.get_tensor(key) for key in content.keys()}
    except (SafetensorError, OSError, ValueError) as error:
        raise SmallFileError(
            f'{path} cannot be read as a safetensors file, it may be truncated or '
            f'another kind of file: {" ".join(str(error).split())}'
        ) from error
    if 'kronattn_mm' not in texts:
        raise SmallFileError(
            f'{path} is a safetensors file with {len(tensors)} tensors, but not '
            'one that kronattn_mm wrote (it has no entry "kronattn_mm")'
        )
    if texts['kronattn_mm'] != FORMAT:
        raise SmallFileError(
            f'{path} has the format {texts["kronattn_mm"]!r} and this version '
            f'reads {FORMAT!r}; install the kronattn_mm that wrote it'
        )
    try:
        values = {name: json.loads(texts[name]) for name in _TEXTS}
        _check_parts(values['parts'])
        for name in ('fingerprint', 'weights', 'shapes', 'model', 'config'):
            values['base'][name]
    except (KeyError, TypeError, ValueError) as error:
        raise SmallFileError(f'the description in {path} is damaged: {error!r}') from error
    return SmallFile(tensors, **values)


def load_attention(
    model: nn.Module, file: str | Path | SmallFile, *, check: str = 'model'
) -> Attached:
    """Load a small file into a model into which the same layers are plugged.

    Args:
        model (nn.Module): The model, built from a config with ``Plugged``.
        file (str, Path or SmallFile): The file.
        check (str): ``'model'``: the whole base must have the keys and shapes of the one the file
            was made with. ``'parts'``: only the modules that something is plugged into, so that
            a head for other classes does. Defaults to ``'model'``.

    Returns:
        Attached: What was loaded. If the base has other weights than the layers were trained on,
        there is a warning too.

    Raises:
        SmallFileError: If the base is another one, or layers or keys differ; nothing is loaded.
    """
    content, name = _content(file)
    model = unwrapped(model)
    ours = added_keys(model)
    if not ours:
        raise SmallFileError(
            f'nothing is inserted into this {type(model).__name__}; '
            'plug_from_file inserts what the file describes'
        )
    _check_base(model, content, name, check)
    texts = differences(spec_of(model, named=False), content.parts)
    if texts:
        raise SmallFileError(
            f'{name} does not fit: {"; ".join(texts[:3])}'
            + (f' (and {len(texts) - 3} more)' if len(texts) > 3 else '')
        )
    _load(model, content, name, ours)
    same = weights_fingerprint(base_state(model)) == content.base['weights']
    if not same:
        print_log(
            f'{name}: the base has other weights than those the layers were trained with '
            f'({_base_words(content)}), so the model is not the one they were trained in',
            'current',
            30,
        )
    return Attached(len(content.tensors), same)


def plug_from_file(
    model: nn.Module, file: str | Path | SmallFile, *, check: str = 'model'
) -> Attached:
    """Insert into a plain model what a small file describes, and load it; no config is needed.

    Args:
        model (nn.Module): A built plain model, such as ``DetInferencer(...).model``.
        file (str, Path or SmallFile): The file.
        check (str): As of :func:`load_attention`.

    Returns:
        Attached: As of :func:`load_attention`.

    Raises:
        SmallFileError: If something is plugged into the model already, the base is another one or
            the file does not fit; the model then stays plain.
        ValueError: If a layer's type is not registered.
    """
    content, name = _content(file)
    model = unwrapped(model)
    if parts_of(model):
        raise SmallFileError(
            f'layers are inserted into this {type(model).__name__} already; '
            'load_attention loads a file into them'
        )
    _check_base(model, content, name, check)
    plug_spec(model, content.parts)
    try:
        return load_attention(model, content, check=check)
    except Exception:
        unplug(model)
        raise


def load_into_part(module: nn.Module, weights: str | Mapping[str, str]) -> None:
    """Load a small file into one backbone, neck or head, and again when it is initialised.

    Args:
        module (nn.Module): The module. If nothing is plugged into it, the file says what to.
        weights (str or Mapping): The file, or a dict with ``file`` and ``part``, the path of the
            module in the model that the file was made of.

    Raises:
        SmallFileError: If no part of the file, or more than one, is for this module.
        TypeError: If ``weights`` is neither a path nor such a dict.
    """
    wanted = None
    if isinstance(weights, Mapping):
        if set(weights) - {'file', 'part'} or 'file' not in weights:
            raise TypeError(
                'attention_weights takes a path or a dict with file and part, got '
                f'{dict(weights)!r}'
            )
        wanted, weights = weights.get('part'), weights['file']
    if not isinstance(weights, (str, Path)):
        raise TypeError(f'attention_weights takes the path of a file, got {weights!r}')
    content = read_small_file(weights)
    part = part_for(module, content, str(weights), wanted)
    if parts_of(module):
        texts = differences(spec_of(module, named=False), [{**part, 'path': ''}])
        if texts:
            raise SmallFileError(f'{weights} does not fit this {type(module).__name__}: {texts[0]}')
    else:
        plug_spec(module, [{**part, 'path': ''}])
    load_part(module.attention, content, part['path'])
    module.attention.weights = (str(weights), part['path'])


def part_for(
    module: nn.Module, content: SmallFile, name: str, wanted: str | None = None
) -> dict[str, Any]:
    """Choose the part of a small file that belongs to one backbone, neck or head.

    Args:
        module (nn.Module): The module, plugged or plain.
        content (SmallFile): A file made of a whole model.
        name (str): Its name, for messages.
        wanted (str, optional): Path of the part in that model. Defaults to None: the one whose
            base has the keys and shapes of ``module``.

    Raises:
        SmallFileError: If there is none, or more than one.
    """
    own = fingerprint(shapes_of(base_state(module)))
    if content.extra['also'] or content.extra['norms']:
        raise SmallFileError(
            f'{name} holds weights of the base too, which a plain checkpoint '
            'that is loaded later would undo; attach the file to that checkpoint'
        )
    there = [part for part in content.parts if wanted in (None, part['path'])]
    if not there:
        raise SmallFileError(f'{name} has no part {wanted!r}; its parts are {_part_names(content)}')
    fitting = [part for part in there if part['fingerprint'] == own]
    if len(fitting) > 1:
        raise SmallFileError(
            f'{len(fitting)} parts of {name} fit this {type(module).__name__}; '
            'say which: attention_weights=dict(file=..., part='
            f'{fitting[0]["path"]!r})'
        )
    if not fitting:
        raise SmallFileError(
            f'{name} is for {_part_names(content)}, and this '
            f'{type(module).__name__} (fingerprint {own[:12]}) is none of them'
        )
    return fitting[0]


def load_part(container: Insertions, content: SmallFile, path: str) -> None:
    """Load the layers of one part of a small file into those of a plugged module.

    Args:
        container (Insertions): Child ``attention`` of the plugged module.
        content (SmallFile): The file.
        path (str): Path of the part in the model of the file.
    """
    prefix = f'{path}.' if path else ''
    tensors = {
        key.removeprefix(prefix): value
        for key, value in content.tensors.items()
        if key.startswith(prefix)
    }
    own = 'attention.'
    container.load_state_dict(
        {key.removeprefix(own): value for key, value in tensors.items() if key.startswith(own)}
    )
    for conv_path, replacement in container.replaced.items():
        replacement.conv.load_state_dict(
            {key: tensors[f'{conv_path}.{key}'] for key in replacement.added_keys()}, strict=False
        )


def check_safetensors() -> None:
    """Raise ImportError, with the command that mends it, unless safetensors is there."""
    try:
        importlib.import_module('safetensors.torch')
    except ImportError as error:
        raise ImportError(
            f'small files are safetensors files, and safetensors cannot be imported '
            f'({error}); install it with `pip install safetensors`'
        ) from error


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that matter and are in use."""
    return {name: sys.modules[name].__version__ for name in _PACKAGES if name in sys.modules}


def _content(file: str | Path | SmallFile) -> tuple[SmallFile, str]:
    if isinstance(file, SmallFile):
        return file, 'the file'
    return read_small_file(file), str(file)


def _check_parts(parts: Any) -> None:
    for part in parts:
        part['path'], part['class'], part['fingerprint']
        for entry in part['insert']:
            for name in ('point', 'path', 'index', 'at', 'norm_eval', 'with_cp', 'enabled'):
                entry[name]
            entry['layer']['type']
        for entry in part['convs']:
            entry['paths'], entry['at'], entry['enabled'], entry['layer']['type']


def _check_base(model: nn.Module, content: SmallFile, name: str, check: str) -> None:
    if check not in ('model', 'parts'):
        raise ValueError(f"check must be 'model' or 'parts', got {check!r}")
    if check == 'parts':
        modules = dict(model.named_modules())
        for part in content.parts:
            module = modules.get(part['path'])
            if module is None or fingerprint(shapes_of(base_state(module))) != part['fingerprint']:
                here = 'no such part' if module is None else f'another {type(module).__name__}'
                raise SmallFileError(
                    f'{name} is for the {part["path"]} ({part["class"]}) of '
                    f'{_base_words(content)}; this {type(model).__name__} has '
                    f'{here}'
                )
        return
    shapes = shapes_of(base_state(model))
    own = fingerprint(shapes)
    if own == content.base['fingerprint']:
        return
    theirs = content.base['shapes']
    lines = [
        f'{key} is {shapes.get(key, "not")} here and {theirs.get(key, "not")} there'
        for key in sorted({*shapes, *theirs})
        if shapes.get(key) != theirs.get(key)
    ]
    raise SmallFileError(
        f'{name} is for {_base_words(content)}, and this is a {type(model).__name__} with '
        f'{len(shapes)} tensors (fingerprint {own[:12]}): {lines[0]}, {len(lines)} differences in '
        'all'
        + (
            ''
            if type(model).__name__ != content.base['model']
            else "; check='parts' compares only what layers are inserted into"
        )
    )


def _base_words(content: SmallFile) -> str:
    base = content.base
    config = f' of {base["config"]}' if base['config'] else ''
    return (
        f'a {base["model"]}{config} with {len(base["shapes"])} tensors (fingerprint '
        f'{base["fingerprint"][:12]})'
    )


def _part_names(content: SmallFile) -> str:
    return ', '.join(
        f'{part["path"] or "the model itself"} ({part["class"]}, fingerprint '
        f'{part["fingerprint"][:12]})'
        for part in content.parts
    )


def _load(model: nn.Module, content: SmallFile, name: str, ours: Iterable[str]) -> None:
    state = model.state_dict()
    missing = [key for key in ours if key not in content.tensors]
    unknown = [key for key in content.tensors if key not in state]
    wrong = [
        f'{key} has the shape {tuple(value.shape)} there and {tuple(state[key].shape)} here'
        for key, value in content.tensors.items()
        if key in state and state[key].shape != value.shape
    ]
    for count, text in (
        (len(missing), f'lacks {missing[:1]}'),
        (len(wrong), f'{wrong[:1]}'),
        (len(unknown), f'holds {unknown[:1]}, which the model lacks'),
    ):
        if count:
            raise SmallFileError(
                f'{name} does not fit this {type(model).__name__}: {text}, {count} such keys'
            )
    model.load_state_dict(content.tensors, strict=False)


def keys_of_modules(base: Mapping[str, Tensor], modules: Sequence[str], kind: str) -> list[str]:
    """Return the keys of ``base``, the state of a ``kind``, that lie in ``modules`` (``also``).

    Raises:
        SmallFileError: If one of them is not there; the message has the nearest.
        TypeError: If ``modules`` is no list of names.
    """
    if (
        isinstance(modules, str)
        or not isinstance(modules, Sequence)
        or not all(isinstance(module, str) for module in modules)
    ):
        raise TypeError(f'`also` must be a list of module paths, got {modules!r}')
    found = []
    for module in modules:
        keys = [key for key in base if key == module or key.startswith(module + '.')]
        if not keys:
            paths = {key.rpartition('.')[0] for key in base}
            paths |= {path.rpartition('.')[0] for path in paths}
            near = difflib.get_close_matches(module, paths, n=1)
            hint = (
                f'did you mean {near[0]!r}?'
                if near
                else f'there are {abbreviated_paths(sorted({key.split(".")[0] for key in base}))}'
            )
            raise SmallFileError(f'{kind} has no module {module!r} with weights; {hint}')
        found += keys
    return found


def _moved_message(moved: Any, left: Sequence[str]) -> str:
    statistics = sum(key in set(moved.statistics) for key in left)
    weights = len(left) - statistics
    ways = []
    if statistics:
        ways.append('include_norms (--include-norms) puts batch norms into the file')
    if weights:
        ways.append('also=[MODULE] (--also) puts trained modules into it')
    return (
        f'the base moved: {statistics} statistics of batch norms and {weights} weights differ '
        f'from the plain checkpoint, such as {left[-1]}, so the file alone would not give the '
        f'trained model back; {"; ".join(ways)}; allow_moved (--allow-moved) writes it all the '
        'same'
    )
