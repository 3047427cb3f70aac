"""Examples that start with >>>, in pages and docstrings, give what is printed under them."""

import ast
import doctest
import importlib

import documentation
import pytest
from documentation import ROOT, pages

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def examples() -> list[tuple[str, str]]:
    """Name and text of everything that holds an example; a page is one, whatever its blocks."""
    found = [
        (documentation.name(page), '\n'.join(documentation.blocks(page, 'pycon')))
        for page in pages()
    ]
    for path in sorted((ROOT / 'kronattn_mm').rglob('*.py')):
        text = path.read_text(encoding='utf-8')
        if '>>>' not in text:
            continue
        module = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                docstring = ast.get_docstring(node) or ''
                found.append((f'{module}:{getattr(node, "name", "")}', docstring))
    return [(name, text) for name, text in found if '>>>' in text]


def run(name: str, text: str) -> doctest.TestResults:
    namespace = {}
    module = name.partition(':')[0]
    if ':' in name:
        namespace = dict(vars(importlib.import_module(module)))
    test = doctest.DocTestParser().get_doctest(text, namespace, name, name, 0)
    return doctest.DocTestRunner(optionflags=FLAGS).run(test)


@pytest.mark.parametrize(('name', 'text'), examples(), ids=[name for name, _ in examples()])
def test_examples(name, text):
    pytest.importorskip('mmengine')
    result = run(name, text)
    assert result.attempted and not result.failed


def test_a_wrong_example_is_noticed():
    assert run('here', '>>> 1 + 1\n3\n').failed == 1


def test_examples_are_in_blocks_that_are_run():
    stray = [
        documentation.name(page)
        for page in pages()
        if '>>>' in page.read_text(encoding='utf-8')
        and '>>>' not in '\n'.join(documentation.blocks(page, 'pycon'))
        and page.name != 'CONTRIBUTING.md'
    ]
    assert not stray
