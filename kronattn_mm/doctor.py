"""What this environment has and lacks, with the command that mends it.

The two stacks of OpenMMLab, the originals and the maintained forks, are distributions of the same
modules under different names. Installed over each other, or half removed, they fail in places that
do not say so; that is what is looked for here, before anything is imported.
"""

import importlib.metadata
import importlib.util
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OK, NOTE, BAD = 'ok', 'note', 'bad'
# Module, distribution of the forks, those of the originals.
STACKS = (
    ('mmengine', 'onedl-mmengine', ('mmengine',)),
    ('mmcv', 'onedl-mmcv', ('mmcv', 'mmcv-lite')),
    ('mmdet', 'onedl-mmdetection', ('mmdet',)),
    ('mmseg', 'onedl-mmsegmentation', ('mmsegmentation',)),
    ('mmpretrain', 'onedl-mmpretrain', ('mmpretrain',)),
    ('mim', 'onedl-mim', ('openmim',)),
)
# Module, distribution, what needs it.
OTHERS = (
    ('torch', 'torch', 'everything'),
    ('torchvision', 'torchvision', 'mmcv, mmdet'),
    ('numpy', 'numpy', 'everything'),
    ('triton', 'triton', 'kernels on a GPU'),
    ('pycocotools', 'pycocotools', 'COCO metrics'),
    ('matplotlib', 'matplotlib', 'charts and maps'),
    ('rich', 'rich', 'tables'),
    ('tqdm', 'tqdm', 'progress'),
    ('jinja2', 'jinja2', 'reports'),
    ('safetensors', 'safetensors', 'small files of inserted layers'),
    ('onnx', 'onnx', 'export'),
    ('onnxruntime', 'onnxruntime', 'export'),
)
_NEEDED = ('torch', 'numpy')
_TOOLS = ('pycocotools', 'matplotlib', 'rich', 'tqdm', 'jinja2', 'safetensors')
_IMPORTED = ('mmdet', 'mmseg', 'mmpretrain')
_SECONDS = 120  # after which an import is given up


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        group: ``'system'``, ``'OpenMMLab'``, ``'packages'``, ``'operators'``, ``'devices'`` or
            ``'layers'``.
        name: What it is.
        level: ``'ok'``, ``'note'`` (not needed by everybody) or ``'bad'``.
        value: Version and place, or what is wrong.
        remedy: A command or a sentence that mends it; empty if nothing has to be done.
    """

    group: str
    name: str
    level: str
    value: str
    remedy: str = ''


def examine() -> list[Finding]:
    """Look at everything; imports of the libraries run beside the rest, in their own processes."""
    imports = {name: _start_import(name) for name in _IMPORTED if _place(name)}
    try:
        findings = [*_system(), *_stacks(), *_packages(), *_operators(), *_devices()]
        findings += _layers()
        findings[_after('OpenMMLab', findings) : 0] = [
            _import_result(name, process) for name, process in imports.items()
        ]
    finally:
        for process in imports.values():
            if process.poll() is None:
                process.kill()
    return findings


def _after(group: str, findings: Sequence[Finding]) -> int:
    return max(index for index, item in enumerate(findings) if item.group == group) + 1


# ---------------------------------------------------------------- what is installed


def _system() -> Iterator[Finding]:
    version = platform.python_version()
    supported = (3, 10) <= sys.version_info[:2] <= (3, 12)
    yield Finding(
        'system',
        'Python',
        OK if supported else NOTE,
        f'{version} at {sys.executable}',
        '' if supported else 'the OpenMMLab stacks are known to work with 3.10 to 3.12',
    )
    yield Finding('system', 'platform', OK, platform.platform())
    from .version import __version__

    yield Finding('system', 'kronattn_mm', OK, f'{__version__} at {Path(__file__).parent}')


def _stacks() -> Iterator[Finding]:
    kinds = set()
    for module, fork, originals in STACKS:
        installed = [name for name in (fork, *originals) if _version(name)]
        place = _place(module)
        if len(installed) > 1:
            yield Finding(
                'OpenMMLab',
                module,
                BAD,
                f'{" and ".join(installed)} are both installed, over the same files',
                f'pip uninstall -y {" ".join(installed)} && pip install {installed[0]}',
            )
        elif installed and place is None:
            yield Finding(
                'OpenMMLab',
                module,
                BAD,
                f'{installed[0]} {_version(installed[0])} is listed, but its files are gone',
                'pip install --force-reinstall --no-deps ' + installed[0],
            )
        elif installed:
            kinds.add('forks' if installed[0] == fork else 'originals')
            yield Finding(
                'OpenMMLab', module, OK, f'{installed[0]} {_version(installed[0])} at {place}'
            )
        elif place is not None:
            yield Finding(
                'OpenMMLab',
                module,
                NOTE,
                f'files without a distribution at {place}',
                f'a checkout on the path, or a rest: remove it, or pip install {fork}',
            )
        else:
            yield Finding(
                'OpenMMLab',
                module,
                NOTE,
                'not installed',
                '' if module == 'mim' else f'pip install {fork}',
            )
    if len(kinds) > 1:
        yield Finding(
            'OpenMMLab',
            'stack',
            BAD,
            'forks and originals are mixed',
            "pip install 'kronattn-mm[forks]', after pip uninstall of the others",
        )
    setuptools = _version('setuptools') or '0'
    if 'originals' in kinds and int(setuptools.partition('.')[0]) >= 82:
        yield Finding(
            'OpenMMLab',
            'setuptools',
            BAD,
            f'{setuptools} has no pkg_resources, which the originals import',
            "pip install 'setuptools<82'",
        )


def _packages() -> Iterator[Finding]:
    for module, distribution, purpose in OTHERS:
        version, place = _version(distribution), _place(module)
        if version and place:
            yield Finding('packages', module, OK, f'{version} at {place}')
        elif version:
            yield Finding(
                'packages',
                module,
                BAD,
                f'{version} is listed, but its files are gone',
                f'pip install --force-reinstall --no-deps {distribution}',
            )
        else:
            remedy = f'pip install {distribution}' if module in (*_NEEDED, *_TOOLS) else ''
            yield Finding(
                'packages',
                module,
                BAD if module in _NEEDED else NOTE,
                f'not installed (for {purpose})',
                remedy,
            )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _place(module: str) -> Path | None:
    """Where a module would be imported from, without importing it; None for a bare folder."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


# ---------------------------------------------------------------- what works


def _start_import(module: str) -> subprocess.Popen:
    environment = dict(os.environ, PYTHONWARNINGS='ignore', OMP_NUM_THREADS='1')
    return subprocess.Popen(
        [sys.executable, '-c', f'import {module}'],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _import_result(module: str, process: subprocess.Popen) -> Finding:
    name = f'import {module}'
    try:
        _, said = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Finding('OpenMMLab', name, BAD, f'not done within {_SECONDS} s')
    if process.returncode == 0:
        return Finding('OpenMMLab', name, OK, 'works')
    lines = [line for line in said.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else f'exit code {process.returncode}'
    fork = next(fork for other, fork, _ in STACKS if other == module)
    remedy = "pip install 'kronattn-mm[forks]' (or [originals]: versions that go together)"
    if 'No module named' in last:
        remedy = f'pip install {fork}, which brings what it needs ({last.split()[-1]})'
    return Finding('OpenMMLab', name, BAD, last, remedy)


def _operators() -> Iterator[Finding]:
    if _place('mmcv') is None:
        return
    from .environment import check_mmcv

    try:
        check_mmcv()
    except ImportError as error:
        text = str(error)
        yield Finding(
            'operators',
            'mmcv',
            BAD,
            text.partition(';')[0],
            text.partition('`')[2].partition('`')[0],
        )
        return
    try:
        import torch
        from mmcv.ops import nms

        boxes = torch.tensor([[0.0, 0.0, 8.0, 8.0], [0.0, 0.0, 8.0, 7.0], [9.0, 9.0, 12.0, 12.0]])
        _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
    except Exception as error:  # whatever a binary built for something else raises
        yield Finding(
            'operators',
            'mmcv',
            BAD,
            f'nms fails: {_line(error)}',
            'build mmcv for this torch: MMCV_WITH_OPS=1 pip install --force-reinstall '
            '--no-deps --no-cache-dir --no-build-isolation onedl-mmcv',
        )
        return
    right = kept.tolist() == [0, 2]
    yield Finding(
        'operators',
        'mmcv',
        OK if right else BAD,
        'compiled operators load, and nms is right'
        if right
        else f'nms keeps {kept.tolist()} instead of [0, 2]',
    )


def _devices() -> Iterator[Finding]:
    if _place('torch') is None:
        return
    import torch

    yield Finding(
        'devices',
        'cpu',
        OK,
        f'{os.cpu_count()} cores, {torch.get_num_threads()} threads used by torch',
    )
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            yield Finding(
                'devices',
                f'cuda:{index}',
                OK,
                f'{device.name}, compute capability {device.major}.{device.minor}, '
                f'{device.total_memory / 2**30:.0f} GiB',
            )
    else:
        built = torch.version.cuda
        text = 'no GPU that torch can use' + (
            f' (it is built for CUDA {built})' if built else ' (this torch is built for the CPU)'
        )
        yield Finding('devices', 'cuda', NOTE, text)


def _layers() -> Iterator[Finding]:
    if _place('torch') is None:
        return
    import torch

    from . import layers

    devices = ['cpu', *(f'cuda:{index}' for index in range(torch.cuda.device_count()))]
    for device in devices:
        broken = {}
        for name in layers.__all__:
            try:
                _try_layer(getattr(layers, name), name, device)
            except Exception as error:  # the point is to say which one fails, however it does
                broken[name] = _line(error)
        count = len(layers.__all__)
        if not broken:
            yield Finding('layers', device, OK, f'forward and backward of all {count} work')
        for name, problem in broken.items():
            yield Finding(
                'layers',
                f'{name} on {device}',
                BAD,
                problem,
                'please report this with the output of `kronattn doctor --json`',
            )


def _try_layer(cls: type, name: str, device: str) -> None:
    """One forward and backward pass on a small map; every parameter must get a finite gradient."""
    import torch

    dimensions = int(name[-2])
    geometry = dict(out_channels=16, kernel_size=3, padding=1) if 'Conv' in name else {}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        layer = cls(in_channels=16, **geometry).to(device)
        x = torch.randn(2, 16, *[6] * dimensions, device=device, requires_grad=True)
        layer(x).square().mean().backward()
    for key, parameter in [('the input', x), *layer.named_parameters()]:
        if parameter.grad is None:
            raise RuntimeError(f'{key} gets no gradient')
        if not math.isfinite(parameter.grad.abs().sum().item()):
            raise RuntimeError(f'the gradient of {key} is not finite')


def _line(error: BaseException) -> str:
    return ' '.join(f'{type(error).__name__}: {error}'.split())[:300]
