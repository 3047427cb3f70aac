"""The metafile of each paper: the one list of its configs.

``mim search kronattn_mm`` reads it, docs/configs.md is made from it, and tests compare it with the
configs. What stands there is kept; configs without an entry get one, with length and batch size
from the loaded config, and entries whose config is gone are left out.

A collection's ``Folder`` says which configs are its own: those in the folder and below it that no
deeper collection claims.
"""

from pathlib import Path
from typing import Any

import yaml

HEADER = """\
# The one list of these configs: `mim search kronattn_mm`, docs/configs.md and the tests read it.
# `python tools/docs/config_table.py` adds entries for new configs; edit the rest by hand.
# An entry has Results and Weights only once its config has been trained to its end.
"""


def metafiles(root: Path) -> list[Path]:
    """Return the files that model-index.yml names, in its order."""
    index = yaml.safe_load((root / 'model-index.yml').read_text(encoding='utf-8'))
    return [root / name for name in index['Import']]


def find_configs(folder: Path) -> list[Path]:
    """Return every config that can be trained, sorted."""
    return [path for path in sorted(folder.rglob('*.py')) if '_base_' not in path.parts]


def texts(root: Path) -> dict[Path, str]:
    """Return what each metafile has to contain for the configs that there are.

    Args:
        root (Path): The checkout.

    Raises:
        ValueError: If a config is in the folder of no collection, or two have the same name.
    """
    contents = {path: yaml.safe_load(path.read_text(encoding='utf-8')) for path in metafiles(root)}
    owners = {
        collection['Folder']: (path, collection['Name'])
        for path, content in contents.items()
        for collection in content['Collections']
    }
    present = {
        entry['Config']: entry for content in contents.values() for entry in content['Models']
    }
    models: dict[Path, list[dict[str, Any]]] = {path: [] for path in contents}
    names: dict[str, str] = {}
    for folder in owners:
        for config in find_configs(root / folder):
            relative = config.relative_to(root).as_posix()
            if owner_of(relative, owners) != folder:
                continue
            if config.stem in names:
                raise ValueError(f'{relative} and {names[config.stem]} have the same name')
            names[config.stem] = relative
            path, collection = owners[folder]
            entry = present.get(relative) or dict(Metadata=lengths(config))
            models[path].append(
                {**entry, 'Name': config.stem, 'In Collection': collection, 'Config': relative}
            )
    listed = set(names.values())
    for config in find_configs(root / 'configs'):
        if config.relative_to(root).as_posix() not in listed:
            raise ValueError(
                f'{config.relative_to(root)} is in the Folder of no collection; add one to a '
                'metafile that model-index.yml names'
            )
    return {path: text({**content, 'Models': models[path]}) for path, content in contents.items()}


def owner_of(config: str, folders: dict[str, Any]) -> str:
    """Return the deepest of the folders that hold a config."""
    return max((folder for folder in folders if config.startswith(f'{folder}/')), key=len)


def lengths(config: Path) -> dict[str, int]:
    """Return the length of a config's training, and its batch size over all processes."""
    from mmengine.config import Config

    content = Config.fromfile(config, import_custom_modules=False)
    found = {}
    train = content.get('train_cfg') or {}
    for name, key in (('Epochs', 'max_epochs'), ('Iterations', 'max_iters')):
        if train.get(key):
            found[name] = train[key]
    scale = content.get('auto_scale_lr') or {}
    loader = content.get('train_dataloader') or {}
    batch = scale.get('base_batch_size') or loader.get('batch_size')
    if batch:
        found['Batch Size'] = batch
    return found


def text(content: dict[str, Any]) -> str:
    """Return a metafile as it is written: its keys in one order, an empty line before entries."""
    order = ('Name', 'In Collection', 'Config', 'Metadata', 'Results', 'Weights')
    models = [
        {key: model[key] for key in (*order, *model) if key in model} for model in content['Models']
    ]
    head = _dumped({key: value for key, value in content.items() if key != 'Models'})
    entries = [_dumped(dict(Models=[model])).split('\n', 1)[1] for model in models]
    return '\n'.join([HEADER + head, 'Models:\n' + '\n'.join(entries)])


def _dumped(value: Any) -> str:
    return yaml.dump(value, sort_keys=False, allow_unicode=True, width=1000, Dumper=_Indented)


class _Indented(yaml.SafeDumper):
    """Indents the items of a list below its key, as people write them; repeats in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)
