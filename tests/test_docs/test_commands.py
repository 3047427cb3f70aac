"""Commands, paths and names in the pages exist.

Options are looked up in the source of the tools; the slow test asks every tool itself.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import documentation
import pytest
from documentation import ROOT, commands, options, options_of, pages

from kronattn_mm.cli.command import COMMANDS
from kronattn_mm.cli.convert import KINDS

# The library's own arguments, which tools/train.py and tools/test.py pass on.
LIBRARIES = ('mmdet', 'mmseg', 'mmpretrain')
OWN_TOOLS = ('tools/train.py', 'tools/test.py')
TARGETS = set(
    ' '.join(re.findall(r'^([\w -]+):(?!=)', (ROOT / 'Makefile').read_text(), re.M)).split()
)


def script_of(words: list[str]) -> Path | None:
    """The script that a command runs, None for `make` and for what is not ours."""
    if words[0] == 'kronattn':
        if len(words) < 2 or words[1] not in COMMANDS:
            return None
        if words[1:2] == ['convert'] and words[2:3] and words[2] in KINDS:
            return ROOT / 'kronattn_mm' / 'converters' / 'commands' / f'{KINDS[words[2]][0]}.py'
        return ROOT.joinpath(*COMMANDS[words[1]][0].split('.')).with_suffix('.py')
    script = words[1] if words[0] == 'python' else words[0]
    return ROOT / script if script.startswith('tools/') else None


def library_options(tool: str) -> set[str]:
    found = {'--dry-run'}
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is not None:
            found |= options_of_file(Path(spec.origin).parent / '.mim' / tool)
    return found


def options_of_file(path: Path) -> set[str]:
    return (
        set(re.findall(r"add_argument\(\s*'(--[\w-]+)'", path.read_text()))
        if path.is_file()
        else set()
    )


@pytest.mark.parametrize('page', pages(), ids=documentation.name)
def test_commands_and_their_options_exist(page):
    wrong = []
    for words in commands(page):
        text = ' '.join(words)
        if words[0] == 'make':
            named = [word for word in words[1:] if re.fullmatch(r'[a-z-]+', word)]
            wrong += [f'{text}: no target {word}' for word in named if word not in TARGETS]
            continue
        if words[0] == 'kronattn' and len(words) > 1 and re.fullmatch(r'[a-z]+', words[1]):
            if words[1] not in COMMANDS:
                wrong.append(f'{text}: no such command')
                continue
        script = script_of(words)
        if script is None:
            continue
        if script.is_dir():
            continue
        if not script.is_file():
            wrong.append(f'{text}: there is no {script.relative_to(ROOT)}')
            continue
        if script.suffix != '.py':
            continue
        known = set(options_of(script))
        if script.stem == 'convert':  # of no kind in particular: any kind's options
            known = known.union(
                *map(options_of, (ROOT / 'kronattn_mm' / 'converters' / 'commands').glob('*.py'))
            )
        if script.relative_to(ROOT).as_posix() in OWN_TOOLS:
            known |= library_options(script.relative_to(ROOT).as_posix())
        wrong += [f'{text}: no option {option}' for option in options(words) if option not in known]
    assert not wrong


@pytest.mark.parametrize('page', pages(), ids=documentation.name)
def test_paths_exist(page):
    """What looks like a path into the repository is one."""
    words = set(
        re.findall(
            r'(?<![\w/.:])((?:configs|docs|kronattn_mm|requirements|tests|tools)/[\w./*\[\]-]+)',
            page.read_text(encoding='utf-8'),
        )
    )
    missing = []
    for word in words:
        word = word.rstrip('.') if '[' in word else word.rstrip('.]')
        if '*' in word or '[' in word:
            found = any(ROOT.glob(word.rstrip('/')))
        else:
            # A path may name what is in a file: kronattn_mm/ops/kronecker.outer_sum
            found = (ROOT / word).exists() or (ROOT / word).with_suffix('.py').is_file()
        if not found:
            missing.append(word)
    assert not missing


def known_types() -> set[str]:
    from kronattn_mm import engine, layers, registry

    return {'Plugged', *layers.__all__, *engine.__all__, *registry._ON_DEMAND}


def test_registered_names_exist():
    pytest.importorskip('mmengine')
    known = known_types()
    wrong = [
        (documentation.name(page), found)
        for page in pages()
        for found in re.findall(r"type='kronattn_mm\.(\w+)'", page.read_text(encoding='utf-8'))
        if found not in known
    ]
    assert not wrong


def test_every_architecture_has_its_place_among_the_api_pages():
    pytest.importorskip('mmengine')
    from kronattn_mm import registry

    text = (ROOT / 'docs' / 'api' / 'models.md').read_text(encoding='utf-8')
    assert set(re.findall(r'autoclass:: (\S+)', text)) == {
        f'{module}.{name}' for name, module in registry._ON_DEMAND.items()
    }


def named_scripts() -> dict[Path, set[str]]:
    found: dict[Path, set[str]] = {}
    for page in pages():
        for words in commands(page):
            script = script_of(words)
            if script is not None and script.suffix == '.py' and script.is_file():
                found.setdefault(script, set()).update(options(words))
    return found


@pytest.mark.slow
@pytest.mark.parametrize('script', sorted(named_scripts()), ids=lambda path: path.stem)
def test_help_names_the_options(script):
    relative = script.relative_to(ROOT)
    module = '.'.join(relative.with_suffix('').parts)
    names = [name for name, (target, _) in COMMANDS.items() if target == module]
    if names:
        program = ['-m', 'kronattn_mm.cli.command', *names]
    else:
        program = ['-m', module] if relative.parts[0] == 'kronattn_mm' else [str(script)]
    answer = subprocess.run(
        [sys.executable, *program, '--help'], capture_output=True, text=True, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr
    if relative.as_posix() in OWN_TOOLS:
        return  # the library's own help
    assert 'example' in answer.stdout.lower()
    if script.stem != 'convert':  # whose kinds have options, and help, of their own
        assert not [word for word in named_scripts()[script] if word not in answer.stdout]


# Named without arguments, and therefore not among the commands of test_page_commands.py.
BARE = ('layers', '--help')


@pytest.mark.slow
@pytest.mark.parametrize('word', BARE)
def test_bare_commands_run(word):
    assert ['kronattn', word] in [words for page in pages() for words in commands(page)]
    program = [sys.executable, '-m', 'kronattn_mm.cli.command', word]
    answer = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr
