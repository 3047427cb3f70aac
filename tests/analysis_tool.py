"""Call the scripts of tools/analysis_tools in this process, so that they share its imports."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def load_tool(name: str) -> ModuleType:
    """Return tools/analysis_tools/<name>.py as a module that is not registered by its name."""
    path = ROOT / 'tools' / 'analysis_tools' / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'analysis_tools_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call_tool(tool: ModuleType, capfd, *argv: str) -> tuple[int, str, str]:
    """Return the exit code of a tool, and what it wrote to stdout and stderr."""
    try:
        code = tool.main(list(argv))
    except SystemExit as stop:
        code = stop.code
    return code, *capfd.readouterr()


def write_config(folder: Path, text: str) -> str:
    """Write a config and return its path."""
    path = folder / 'config.py'
    path.write_text(text, encoding='utf-8')
    return str(path)
