"""How Sphinx builds the pages: Markdown through MyST, the API from docstrings."""

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from kronattn_mm.version import __version__  # noqa: E402

project = 'kronattn_mm'
author = 'the authors of kronattn_mm'
release = version = __version__
html_title = f'kronattn_mm {release}'

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
source_suffix = {'.md': 'markdown'}
exclude_patterns = ['images']

myst_heading_anchors = 4
highlight_language = 'none'  # of a block that names none: commands

autodoc_member_order = 'bysource'
# torch's own text about `forward` says nothing about our layers.
autodoc_inherit_docstrings = False
autodoc_default_options = {'members': True, 'show-inheritance': True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
# Fields of a dataclass would otherwise be described twice.
napoleon_use_ivar = True

html_theme = 'furo'
html_copy_source = False
html_show_copyright = False

# Pages whose text lies elsewhere in the repository, where people who read it there look for it.
TEXT_OF = {
    'repository/changelog': ROOT / 'CHANGELOG.md',
    'repository/classification': ROOT / 'configs/shift_and_balance/classification/README.md',
    'repository/contributing': ROOT / 'CONTRIBUTING.md',
    'repository/efficient_attention': ROOT / 'configs/efficient_attention/README.md',
    'repository/kronecker_attention': ROOT / 'configs/kronecker_attention/README.md',
    'repository/readme': ROOT / 'README.md',
    'repository/segmentation': ROOT / 'configs/kronecker_attention/segmentation/README.md',
    'repository/ssd': ROOT / 'configs/shift_and_balance/ssd/README.md',
    'repository/stereo': ROOT / 'configs/efficient_attention/stereo/README.md',
    'repository/temporal_localization': ROOT
    / 'configs/efficient_attention/temporal_localization/README.md',
}
_LINK = re.compile(r'(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)')


def read_text(app: Sphinx, page: str, source: list[str]) -> None:
    """Fetch the text of a page in TEXT_OF, and make every link one that works among pages."""
    file = TEXT_OF.get(page, DOCS / f'{page}.md')
    if page in TEXT_OF:
        source[0] = file.read_text(encoding='utf-8')
    pages = {path: DOCS / f'{name}.md' for name, path in TEXT_OF.items()}
    folder = (DOCS / page).parent

    def link(match: re.Match) -> str:
        target = (file.parent / match['target']).resolve()
        target = pages.get(target, target)
        if target.is_dir():
            return match['text']  # a page cannot show a folder
        return f'[{match["text"]}]({os.path.relpath(target, folder)}{match["anchor"] or ""})'

    source[0] = _LINK.sub(link, source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect('source-read', read_text)
