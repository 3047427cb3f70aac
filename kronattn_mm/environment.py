"""What has to be installed, said in one sentence when it turns out to be missing."""

import importlib
import importlib.metadata

_MMCV_DISTRIBUTIONS = ('onedl-mmcv', 'mmcv', 'mmcv-lite')


def check_mmcv() -> None:
    """Raise ImportError, with the command that mends it, unless mmcv's operators can be loaded.

    mmdet cannot be imported without them; nothing else in this package needs them.
    """
    installed = _installed(_MMCV_DISTRIBUTIONS)
    try:
        importlib.import_module('mmcv')
    except ImportError as error:
        raise ImportError(
            f'mmcv cannot be imported ({error}), and detectors are built with it; install it with '
            '`pip install onedl-mmcv` (or `pip install "mmcv<2.2"` beside the original mmdet)'
        ) from error
    try:
        importlib.import_module('mmcv._ext')
    except ImportError as error:
        name = installed if installed in ('onedl-mmcv', 'mmcv') else 'mmcv'
        raise ImportError(
            f'mmcv is installed without its compiled operators ({error}), and detectors need them; '
            f'build them with `MMCV_WITH_OPS=1 pip install --force-reinstall --no-deps '
            f'--no-cache-dir --no-build-isolation {name}`'
        ) from error


def _installed(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    return None
