"""docs/own_layer.md: the layer of one's own is inserted as the page says."""

import sys
import types

import pytest
from documentation import DOCS, blocks

pytest.importorskip('mmdet')


def test_the_page_runs_as_it_stands(monkeypatch):
    layer, config, use = blocks(DOCS / 'own_layer.md', 'python')
    body = [line for line in layer.splitlines() if line.strip()]
    assert len(body) <= 20, f'the page promises 20 lines, and it is {len(body)}'
    module = types.ModuleType('my_layers')
    monkeypatch.setitem(sys.modules, 'my_layers', module)
    exec(compile(layer, 'own_layer.md', 'exec'), vars(module))
    settings: dict = {}
    exec(compile(config, 'own_layer.md', 'exec'), settings)
    assert 'my_layers' in settings['custom_imports']['imports']
    # The config of the page and the call below it insert the same.
    namespace = dict(vars(module))
    exec(compile(use, 'own_layer.md', 'exec'), namespace)
    from kronattn_mm.plugging import Plugged

    arguments = settings['model']['backbone']
    arguments.pop('type')
    backbone = Plugged(depth=18, **arguments)
    assert backbone.state_dict().keys() == namespace['backbone'].state_dict().keys()
    # The start is the identity, but the layer can leave it.
    images = namespace['torch'].randn(2, 3, 64, 64)
    sum(out.square().mean() for out in backbone(images)).backward()
    assert backbone.attention.res4.score.weight.grad.abs().max() > 0
    backbone.init_weights()
    assert not backbone.attention.res3.score.weight.any()
