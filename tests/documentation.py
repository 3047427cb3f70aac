"""What the pages say, for the tests of tests/test_docs: links, commands, paths, code."""

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / 'docs'

_FENCE = re.compile(r'^ *```(?P<language>[\w{}-]*)[^\n]*\n(?P<code>.*?)^ *```', re.M | re.S)
_LINK = re.compile(r'!?\[[^\]]*\]\((?P<target>[^)\s]+)\)')
_INLINE = re.compile(r'`([^`\n]+)`')
_INDENTED = re.compile(r'(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n)+')


def pages() -> list[Path]:
    """Every Markdown file that people read, in the order of their names."""
    found = [ROOT / name for name in ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')]
    found += [path for folder in ('docs', 'configs') for path in (ROOT / folder).rglob('*.md')]
    return sorted(found)


def name(page: Path) -> str:
    """How a page is called in the names of tests."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language in a page."""
    return [
        match['code']
        for match in _FENCE.finditer(page.read_text(encoding='utf-8'))
        if match['language'] == language
    ]


def prose(page: Path) -> str:
    """The text of a page without fenced blocks."""
    return _FENCE.sub('', page.read_text(encoding='utf-8'))


def links(page: Path) -> list[str]:
    """Targets of the links and pictures of a page that do not lead to the web."""
    targets = [match['target'] for match in _LINK.finditer(prose(page))]
    return [target for target in targets if '://' not in target and not target.startswith('mailto')]


def anchors(page: Path) -> set[str]:
    """The anchors that headings get, on code hosts and in the built pages alike."""
    found = set()
    for heading in re.findall(r'^#+ +(.+?) *$', prose(page), re.M):
        text = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).replace('`', '').lower()
        found.add(re.sub(r'[^\w\- ]', '', text).replace(' ', '-'))
    return found


def commands(page: Path) -> list[list[str]]:
    """The words of every command of ours that a page names, in blocks and in running text."""
    text = page.read_text(encoding='utf-8')
    lines: list[str] = []
    for language in ('', 'bash', 'sh', 'console'):
        for block in blocks(page, language):
            lines += block.replace('\\\n', ' ').splitlines()
    for match in _INDENTED.finditer(_FENCE.sub('', text)):
        lines += match.group().replace('\\\n', ' ').splitlines()
    lines += _INLINE.findall(prose(page))
    found = []
    for line in lines:
        line = line.strip().removeprefix('$ ').split(' # ')[0]
        line = re.sub(r'[\[\]]', ' ', line) if '[' in line else line
        try:
            words = shlex.split(line)
        except ValueError:  # an apostrophe: no command
            continue
        while words and re.fullmatch(r'[A-Z_]+=\S*', words[0]):
            words = words[1:]
        if words and words[0].endswith('bin/python'):
            words[0] = 'python'
        if (
            words[:1] == ['kronattn']
            or words[:1] == ['make']
            or (words[:1] == ['python'] and len(words) > 1)
            or (words[:1] and words[0].startswith('tools/'))
        ):
            found.append(words)
    return found


def options(words: list[str]) -> list[str]:
    """The long options among the words of a command."""
    return [word.split('=')[0] for word in words if re.match(r'--[a-z]', word)]


@functools.cache
def options_of(script: Path) -> frozenset[str]:
    """The options that a script defines, itself or in modules of ours that it imports.

    They are read in the source, since starting a tool takes seconds.
    """
    found: set[str] = set()
    waiting, seen = [script], set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            own, imported = _read(path)
            found |= own
            waiting += imported
    return frozenset(found | {'--help'})


@functools.cache
def _read(path: Path) -> tuple[set[str], list[Path]]:
    """The options that one file defines, and the files of ours that it imports."""
    found: set[str] = set()
    imported: list[Path] = []
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'add_argument':
            found.update(
                value.value
                for value in node.args
                if isinstance(value, ast.Constant) and str(value.value).startswith('--')
            )
        imported += _imported(node, path)
    return found, imported


def _imported(node: ast.AST, path: Path) -> Iterator[Path]:
    """The files of ours that an import statement in ``path`` means."""
    if isinstance(node, ast.Import):
        modules = [(alias.name, 0) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ''
        modules = [(base, node.level)] + [
            (f'{base}.{alias.name}'.strip('.'), node.level) for alias in node.names
        ]
    else:
        return
    for module, level in modules:
        places = [path.parents[level - 1]] if level else [ROOT, path.parent]
        for place in places:
            file = place.joinpath(*module.split('.')).with_suffix('.py')
            package = place.joinpath(*module.split('.'), '__init__.py')
            yield from (
                found for found in (file, package) if found.is_file() and found.is_relative_to(ROOT)
            )


_PROGRAMS = (
    r'(?:[A-Z_]+=\S+ +)*'
    r'(?:kronattn|make|(?:\.venv/bin/)?python|pip|mim|tools/\S+\.(?:py|sh))(?: |$)'
)
_MENTION = re.compile(
    r'(?:kronattn|make|mim|tools/\S+|python -m kronattn_mm)(?: [a-z-]+)?|kronattn convert [a-z-]+'
)


def shell_lines(page: Path) -> list[str]:
    """The commands of a page as a shell gets them: continued lines joined, comments left out.

    They are the lines of its blocks that begin with a program, and what the running text names with
    arguments; a bare name (`kronattn points`) is no command. Optional parts lose their brackets. A
    ``cd`` stays before the commands that follow it in its block.
    """
    text = page.read_text(encoding='utf-8')
    found: list[str] = []
    whole = [
        block for language in ('', 'bash', 'sh', 'console') for block in blocks(page, language)
    ]
    whole += [match.group() for match in _INDENTED.finditer(_FENCE.sub('', text))]
    for block in whole:
        place = ''
        for line in block.replace('\\\n', ' ').splitlines():
            line = line.strip().removeprefix('$ ')
            if line.startswith('cd '):
                place = f'{line} && '
            elif re.match(_PROGRAMS, line):
                found.append(place + line)
    inline = (' '.join(words.split()) for words in _INLINE.findall(prose(page)))
    named = [words for words in inline if re.match(_PROGRAMS, words)]
    cleaned = [_cleaned(line) for line in found]
    cleaned += [line for line in map(_cleaned, named) if not _MENTION.fullmatch(line)]
    return list(dict.fromkeys(cleaned))


def _cleaned(line: str) -> str:
    """A command without comment, dots, and the brackets around its optional parts."""
    line = re.sub(r' +#.*| *\.\.\.$', '', line)
    line = re.sub(r'(?<!\S)\[([^\[\]]*)\](?!\S)', r'\1', line)
    return ' '.join(line.removesuffix(' ...').split())


def command_pages() -> list[Path]:
    """The pages whose commands are run: all but the list of changes, which are history."""
    return [page for page in pages() if page.name != 'CHANGELOG.md']
