"""Links between pages lead somewhere, and every page can be found."""

import re

import documentation
import pytest
from documentation import DOCS, ROOT, anchors, links, pages


@pytest.mark.parametrize('page', pages(), ids=documentation.name)
def test_links_lead_to_files_and_headings(page):
    dead = []
    for target in links(page):
        path, _, anchor = target.partition('#')
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            dead.append(target)
        elif anchor and file.suffix == '.md' and anchor not in anchors(file):
            dead.append(f'{target}; there are {sorted(anchors(file))}')
    assert not dead


def listed() -> set[str]:
    text = (DOCS / 'index.md').read_text(encoding='utf-8')
    trees = re.findall(r'^```{toctree}\n(.*?)^```', text, re.M | re.S)
    lines = [line for tree in trees for line in tree.splitlines() if line and line[0] != ':']
    return {re.sub(r'.* <(.*)>', r'\1', line) for line in lines}


def test_every_page_is_in_the_index():
    there = {path.relative_to(DOCS).with_suffix('').as_posix() for path in DOCS.rglob('*.md')}
    assert listed() == there - {'index'}


def test_the_readme_leads_to_the_pages():
    assert any(target.startswith('docs/') for target in links(ROOT / 'README.md'))


def test_pictures_say_what_they_show():
    bare = [
        (documentation.name(page), match)
        for page in pages()
        for match in re.findall(r'!\[ *\]\(([^)]*)\)', page.read_text(encoding='utf-8'))
    ]
    assert not bare
