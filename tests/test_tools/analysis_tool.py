"""Load a script of tools/analysis_tools as a module, so that many calls share one process."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load_tool(name: str) -> ModuleType:
    """Return tools/analysis_tools/<name>.py as a module that is not registered by its name."""
    path = ROOT / 'tools' / 'analysis_tools' / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'analysis_tools_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
