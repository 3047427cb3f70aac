"""tools/dataset_tools/prepare_*.py against a server on this machine that breaks off and lies."""

import hashlib
import importlib
import io
import json
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
BYTES = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()


class Server:
    """Files by name, and how badly they are served.

    Attributes:
        files: Content by name.
        ranges: Whether requests for a part are answered with it.
        cuts: For each answer to come, after how many bytes the connection is closed.
        failing: How many answers to come are 503.
        asked: The Range header of every request so far.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.cuts: list[int] = []
        self.failing = 0
        self.asked: list[str | None] = []


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get('Range')
            state.asked.append(asked)
            content = state.files.get(self.path.lstrip('/'))
            if state.failing:
                state.failing -= 1
                self.send_error(503)
                return
            if content is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix('bytes=').rstrip('-')) if asked and state.ranges else 0
            if start >= len(content):
                self.send_response(416)
                self.send_header('Content-Range', f'bytes */{len(content)}')
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                last = len(content) - 1
                self.send_header('Content-Range', f'bytes {start}-{last}/{len(content)}')
            self.send_header('Content-Length', str(len(content) - start))
            self.end_headers()
            length = state.cuts.pop(0) if state.cuts else len(content)
            self.wfile.write(content[start : start + length])

        def log_message(self, *arguments: object) -> None:
            pass

    service = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    state = Server(f'http://127.0.0.1:{service.server_port}')
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    yield state
    service.shutdown()
    service.server_close()


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    """Import a tool as its own script does: its folder is on the path."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools' / 'dataset_tools'))

    def load(name: str) -> ModuleType:
        fetching = importlib.import_module('fetching')
        monkeypatch.setattr(fetching.time, 'sleep', lambda seconds: None)
        return importlib.import_module(name)

    return load


def archive_of(fetching: ModuleType, url: str, content: bytes) -> object:
    digest = hashlib.sha256(content).hexdigest()
    return fetching.Archive(url, ('sha256', digest), 'this test', len(content), len(content))


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w', zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return stream.getvalue()


def tarred(files: dict[str, bytes], mode: str = 'w') -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as file:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def jpeg(seed: int = 0) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, 'JPEG')
    return stream.getvalue()


def all_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}


# -- downloads -----------------------------------------------------------------------------------


def test_a_download_that_breaks_off_goes_on(tool, server, tmp_path):
    fetching = tool('fetching')
    server.files['a.zip'] = BYTES
    server.cuts, server.failing = [100_000, 50_000], 1
    archive = archive_of(fetching, f'{server.url}/a.zip', BYTES)
    path = fetching.fetch(archive, tmp_path)
    assert path.read_bytes() == BYTES and all_files(tmp_path) == {'a.zip'}
    assert server.asked == [None, None, 'bytes=100000-', 'bytes=150000-']
    fetching.fetch(archive, tmp_path)  # it is there: nothing is asked for
    assert len(server.asked) == 4


def test_a_later_run_goes_on_where_one_was_stopped(tool, server, tmp_path):
    fetching = tool('fetching')
    server.files['a.zip'] = BYTES
    server.cuts = [120_000] + [0] * 5
    archive = archive_of(fetching, f'{server.url}/a.zip', BYTES)
    with pytest.raises(fetching.FetchError, match='120,000 bytes and is gone on with'):
        fetching.fetch(archive, tmp_path)
    assert all_files(tmp_path) == {'a.zip.part'}
    server.cuts, server.asked = [], []
    assert fetching.fetch(archive, tmp_path).read_bytes() == BYTES
    assert server.asked == ['bytes=120000-']


def test_a_server_without_ranges_sends_everything_again(tool, server, tmp_path):
    fetching = tool('fetching')
    server.files['a.zip'], server.ranges, server.cuts = BYTES, False, [120_000]
    archive = archive_of(fetching, f'{server.url}/a.zip', BYTES)
    assert fetching.fetch(archive, tmp_path).read_bytes() == BYTES
    assert server.asked == [None, 'bytes=120000-']


@pytest.mark.parametrize('extra', [b'', b'more'])
def test_a_part_that_is_whole_or_too_long(tool, server, tmp_path, extra):
    fetching = tool('fetching')
    server.files['a.zip'] = BYTES
    (tmp_path / 'a.zip.part').write_bytes(BYTES + extra)
    archive = archive_of(fetching, f'{server.url}/a.zip', BYTES)
    assert fetching.fetch(archive, tmp_path).read_bytes() == BYTES
    assert len(server.asked) == (2 if extra else 1)


def test_a_wrong_sum_leaves_nothing(tool, server, tmp_path):
    fetching = tool('fetching')
    server.files['a.zip'] = BYTES[:-1] + b'x'
    archive = archive_of(fetching, f'{server.url}/a.zip', BYTES)
    with pytest.raises(fetching.FetchError, match='this test says .* is removed'):
        fetching.fetch(archive, tmp_path)
    assert not all_files(tmp_path)
    (tmp_path / 'a.zip').write_bytes(BYTES[:-5])  # put there by hand: not removed, named
    with pytest.raises(fetching.FetchError, match='remove it, and it is downloaded again'):
        fetching.fetch(archive, tmp_path)
    assert all_files(tmp_path) == {'a.zip'} and len(server.asked) == 1


def test_without_a_server_the_file_and_its_place_are_named(tool, tmp_path):
    fetching = tool('fetching')
    url = 'http://127.0.0.1:9/set/a.zip'  # the discard port: nobody listens
    with pytest.raises(fetching.FetchError) as error:
        fetching.fetch(archive_of(fetching, url, BYTES), tmp_path)
    message = str(error.value)
    assert url in message and f'put it at {tmp_path / "a.zip"}' in message
    assert not all_files(tmp_path)


def test_a_file_that_is_not_there_is_asked_for_once(tool, server, tmp_path):
    fetching = tool('fetching')
    with pytest.raises(fetching.FetchError, match='answers 404'):
        fetching.fetch(archive_of(fetching, f'{server.url}/a.zip', BYTES), tmp_path)
    assert len(server.asked) == 1


# -- archives ------------------------------------------------------------------------------------


@pytest.mark.parametrize('pack', [zipped, tarred, lambda files: tarred(files, 'w:gz')])
def test_unpacking_keeps_what_is_there(tool, tmp_path, pack):
    fetching = tool('fetching')
    files = {'top/a/1.txt': b'one', 'top/a/2.txt': b'two', 'top/b/3.txt': b'three', 'x': b'y'}
    (tmp_path / 'set').write_bytes(pack(files))
    out = tmp_path / 'out'
    (out / 'a').mkdir(parents=True)
    (out / 'a' / '1.txt').write_bytes(b'ONE')  # as long: kept
    (out / 'a' / '2.txt').write_bytes(b'tw')  # cut off: written again
    fetching.unpack(tmp_path / 'set', out, strip='top', only=('a/',))
    assert all_files(out) == {'a/1.txt', 'a/2.txt'}
    assert (out / 'a' / '1.txt').read_bytes() == b'ONE'
    assert (out / 'a' / '2.txt').read_bytes() == b'two'


@pytest.mark.parametrize('pack', [zipped, tarred])
@pytest.mark.parametrize('name', ['../evil', 'a/../../evil', '/evil', 'c:\\evil', '..\\evil'])
def test_nothing_is_written_outside(tool, tmp_path, pack, name):
    fetching = tool('fetching')
    (tmp_path / 'in').mkdir()
    (tmp_path / 'in' / 'set').write_bytes(pack({name: b'content'}))
    with pytest.raises(fetching.FetchError, match='would be written outside'):
        fetching.unpack(tmp_path / 'in' / 'set', tmp_path / 'in' / 'out')
    assert all_files(tmp_path) == {'in/set'}


def test_links_are_not_unpacked(tool, tmp_path):
    fetching = tool('fetching')
    with tarfile.open(tmp_path / 'set.tar', 'w') as file:
        member = tarfile.TarInfo('link')
        member.type, member.linkname = tarfile.SYMTYPE, '/etc'
        file.addfile(member)
    with pytest.raises(fetching.FetchError, match='is a link or a device'):
        fetching.unpack(tmp_path / 'set.tar', tmp_path / 'out')


@pytest.mark.parametrize('pack', [zipped, tarred, lambda files: tarred(files, 'w:gz')])
def test_a_cut_archive_is_named(tool, tmp_path, pack):
    fetching = tool('fetching')
    content = pack({'a/1': b'1', 'a/2': BYTES})
    (tmp_path / 'set').write_bytes(content[: len(content) // 2])
    with pytest.raises(fetching.FetchError, match='is damaged'):
        fetching.unpack(tmp_path / 'set', tmp_path / 'out')
    assert all_files(tmp_path) <= {'set', 'out/a/1'}  # no half file


def test_a_damaged_member_is_named(tool, tmp_path):
    fetching = tool('fetching')
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, 'w', zipfile.ZIP_STORED) as file:
        file.writestr('a', BYTES)
    content = bytearray(stream.getvalue())
    content[1000] ^= 1
    (tmp_path / 'set.zip').write_bytes(content)
    with pytest.raises(fetching.FetchError, match='Bad CRC-32'):
        fetching.unpack(tmp_path / 'set.zip', tmp_path / 'out')
    assert all_files(tmp_path) == {'set.zip'}


# -- COCO ----------------------------------------------------------------------------------------


@pytest.fixture
def coco(tool, server, monkeypatch):
    """prepare_coco.py, with small archives on the server in place of COCO's."""
    module = tool('prepare_coco')
    pictures = {
        split: [f'{split}{number}.jpg' for number in range(3)] for split in ('train', 'val')
    }
    files = {
        f'annotations/instances_{split}2017.json': json.dumps(
            dict(images=[dict(file_name=name) for name in names])
        ).encode()
        for split, names in pictures.items()
    }
    contents = {'annotations': zipped(files)}
    for split, names in pictures.items():
        contents[split] = zipped({f'{split}2017/{name}': jpeg() for name in names})
    fetching, parts = tool('fetching'), []
    for part in module.PARTS:
        content = contents[part.name]
        server.files[part.archive.name] = content
        archive = archive_of(fetching, part.archive.url, content)
        parts.append(fetching.Part(part.name, archive))
    monkeypatch.setattr(module, 'PARTS', parts)
    return module


def test_coco_from_nothing_to_complete(coco, server, tmp_path, capsys):
    root, mirror = tmp_path / 'coco', ['--mirror', server.url]
    assert coco.main([str(root), '--dry-run', *mirror]) == 0
    assert f'{server.url}/train2017.zip' in capsys.readouterr().out
    assert not root.exists() and not server.asked
    assert coco.main([str(root), '--check']) == 1
    assert 'instances_train2017.json is missing' in capsys.readouterr().err

    assert coco.main([str(root), '--parts', 'val', 'annotations', *mirror]) == 0
    printed = capsys.readouterr().out
    assert '3 of 3 pictures' in printed and not (root / 'train2017').exists()
    assert coco.main([str(root), *mirror]) == 0
    assert len(server.asked) == 3  # what was unpacked is not asked for again
    assert len(list((root / 'train2017').glob('*.jpg'))) == 3
    assert not list(root.rglob('*.part'))

    (root / 'val2017' / 'val1.jpg').unlink()
    assert coco.main([str(root), '--check']) == 1
    assert 'lacks 1 pictures, such as val1.jpg' in capsys.readouterr().err


def test_coco_without_room_downloads_nothing(coco, tool, server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool('fetching'), 'free_space', lambda folder: 100)
    assert coco.main([str(tmp_path), '--mirror', server.url]) == 1
    assert 'nothing was downloaded' in capsys.readouterr().err
    assert not server.asked and not all_files(tmp_path)


def test_a_folder_that_cannot_be_made_and_a_mirror_that_is_no_address(coco, tmp_path, capsys):
    (tmp_path / 'file').write_text('mine')
    for arguments, words in (
        ([tmp_path / 'file'], 'Not a directory'),
        ([tmp_path / 'new', '--mirror', 'downloads'], 'is no address'),
    ):
        assert coco.main([str(argument) for argument in arguments]) == 1
        assert words in capsys.readouterr().err
    assert (tmp_path / 'file').read_text() == 'mine'


def test_coco_published_sums(tool):
    """Names, lengths and sums as TensorFlow Datasets lists them; each is of its own archive."""
    parts = tool('prepare_coco').PARTS
    assert [part.archive.name for part in parts] == [
        'annotations_trainval2017.zip',
        'val2017.zip',
        'train2017.zip',
    ]
    assert all(part.archive.sum[0] == 'sha256' for part in parts)
    assert len({part.archive.sum[1] for part in parts}) == 3
    assert all(len(part.archive.sum[1]) == 64 for part in parts)


# -- Pascal VOC ----------------------------------------------------------------------------------


def voc_tar(year: str, lists: dict[str, list[str]]) -> bytes:
    top, files = f'VOCdevkit/VOC{year}', {}
    for path, names in lists.items():
        files[f'{top}/ImageSets/{path}.txt'] = '\n'.join(names).encode()
        for name in names:
            files[f'{top}/JPEGImages/{name}.jpg'] = jpeg()
            files[f'{top}/Annotations/{name}.xml'] = b'<annotation/>'
            files[f'{top}/SegmentationClass/{name}.png'] = b'png'
    return tarred(files)


def test_voc_list_that_is_empty_or_in_another_encoding(tool, tmp_path, capsys):
    file = tmp_path / 'VOC2007' / 'ImageSets' / 'Main' / 'trainval.txt'
    file.parent.mkdir(parents=True)
    for content, words in ((b'', f'{file} is empty'), (b'caf\xe9\n', 'lacks 1 of 1 files')):
        file.write_bytes(content)
        assert tool('prepare_voc').main([str(tmp_path), '--check', '--parts', '2007']) == 1
        assert words in capsys.readouterr().err


def test_voc_with_the_extra_segmentations(tool, server, tmp_path, monkeypatch, capsys):
    scipy_io = pytest.importorskip('scipy.io')
    pytest.importorskip('mmseg')
    from torchvision.datasets import SBDataset
    from torchvision.datasets.voc import DATASET_YEAR_DICT

    module = tool('prepare_voc')
    segmentation = {'train': ['s1'], 'val': ['s2'], 'trainval': ['s1', 's2']}
    archives = {
        '2007': voc_tar('2007', {'Main/trainval': ['a', 'b']}),
        '2007-test': voc_tar('2007', {'Main/test': ['c']}),
        '2012': voc_tar(
            '2012',
            {
                'Main/trainval': ['s1', 's2', 'e1', 'e2'],
                **{f'Segmentation/{name}': names for name, names in segmentation.items()},
            },
        ),
    }
    for name, content in archives.items():
        entry = DATASET_YEAR_DICT[name]
        monkeypatch.setitem(entry, 'md5', md5(content))
        server.files[entry['url'].rpartition('/')[2]] = content
    labels = np.arange(64, dtype=np.uint8).reshape(8, 8) % 21
    extra = {'benchmark_RELEASE/dataset/img/e1.jpg': jpeg()}
    for name in ('s1', 's2', 'e1', 'e2'):
        stream = io.BytesIO()
        scipy_io.savemat(stream, dict(GTcls=dict(Segmentation=labels)))
        extra[f'benchmark_RELEASE/dataset/cls/{name}.mat'] = stream.getvalue()
    extra['benchmark_RELEASE/dataset/train.txt'] = b's1\ne1\n'
    extra['benchmark_RELEASE/dataset/val.txt'] = b's2\ne2\n'
    content = tarred(extra, 'w:gz')
    monkeypatch.setattr(SBDataset, 'md5', md5(content))
    server.files['benchmark.tgz'] = content

    upstream = module.converter

    def smaller() -> ModuleType:
        script = upstream()
        script.AUG_LEN = 3  # of the real set 10,582: s1 and the two extra ones here
        return script

    monkeypatch.setattr(module, 'converter', smaller)
    root = tmp_path / 'VOCdevkit'
    assert module.main([str(root), '--mirror', server.url]) == 0, capsys.readouterr().err
    assert (root / 'VOC2007' / 'JPEGImages' / 'c.jpg').is_file()
    lists = root / 'VOC2012' / 'ImageSets' / 'Segmentation'
    assert set((lists / 'aug.txt').read_text().split()) == {'e1', 'e2'}
    assert set((lists / 'trainaug.txt').read_text().split()) == {'s1', 'e1', 'e2'}
    made = np.asarray(Image.open(root / 'VOC2012' / 'SegmentationClassAug' / 'e2.png'))
    np.testing.assert_array_equal(made, labels)
    assert not (root / 'VOCaug' / 'dataset' / 'img').exists()
    assert module.main([str(root), '--mirror', server.url]) == 0
    assert len(server.asked) == 4

    (root / 'VOC2007' / 'Annotations' / 'a.xml').unlink()
    capsys.readouterr()
    assert module.main([str(root), '--check']) == 1
    assert 'lacks 1 of 2 files' in capsys.readouterr().err
    assert module.main([str(root), '--check', '--parts', '2012', 'sbd']) == 0


def test_voc_extra_segmentations_alone_name_what_they_need(tool, tmp_path, capsys):
    pytest.importorskip('torchvision')
    module = tool('prepare_voc')
    tmp_path.joinpath('.sbd.unpacked').write_text('')
    assert module.main([str(tmp_path), '--parts', 'sbd']) == 1
    assert 'needs the part 2012 first' in capsys.readouterr().err


# -- CIFAR-10 ------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tool, server, monkeypatch):
    torchvision = pytest.importorskip('torchvision')
    upstream = torchvision.datasets.CIFAR10
    random, files = np.random.default_rng(0), {}

    def listed(entries: list[list[str]]) -> list[list[str]]:
        found = []
        for name, _ in entries:
            values = random.integers(0, 256, (4, 3072), dtype=np.uint8)
            files[name] = pickle.dumps(dict(data=values, labels=[0, 1, 1, 9]))
            found.append([name, md5(files[name])])
        return found

    monkeypatch.setattr(upstream, 'train_list', listed(upstream.train_list))
    monkeypatch.setattr(upstream, 'test_list', listed(upstream.test_list))
    files['batches.meta'] = pickle.dumps(dict(label_names=[f'class{n}' for n in range(10)]))
    monkeypatch.setattr(upstream, 'meta', dict(upstream.meta, md5=md5(files['batches.meta'])))
    content = tarred({f'cifar-10-batches-py/{name}': data for name, data in files.items()}, 'w:gz')
    monkeypatch.setattr(upstream, 'tgz_md5', md5(content))
    server.files['cifar-10-python.tar.gz'] = content
    return tool('prepare_cifar10'), files


def test_cifar_with_pictures(cifar, server, tmp_path, capsys):
    module, files = cifar
    arguments = [str(tmp_path), '--pictures', '--mirror', server.url]
    assert module.main(arguments) == 0, capsys.readouterr().err
    assert 'train: 20 of 20 pictures' in capsys.readouterr().out
    assert len(list((tmp_path / 'train' / 'class1').glob('*.png'))) == 10
    batch = pickle.loads(files['data_batch_2'])  # its first picture is the fifth
    picture = np.asarray(Image.open(tmp_path / 'train' / 'class0' / '00004.png'))
    np.testing.assert_array_equal(picture, batch['data'][0].reshape(3, 32, 32).transpose(1, 2, 0))
    (tmp_path / 'test' / 'class9' / '00003.png').unlink()
    assert module.main([str(tmp_path), '--pictures', '--check']) == 1
    assert module.main(arguments) == 0  # written again


def test_cifar_damaged_files_are_not_unpickled(cifar, server, tmp_path, capsys):
    module, _ = cifar
    assert module.main([str(tmp_path), '--mirror', server.url]) == 0
    path = tmp_path / 'cifar-10-batches-py' / 'test_batch'
    path.write_bytes(b'cos\nsystem\n')
    assert module.main([str(tmp_path), '--pictures', '--mirror', server.url]) == 1
    assert 'test_batch is damaged' in capsys.readouterr().err
    assert not (tmp_path / 'train').exists()


# -- ImageNet ------------------------------------------------------------------------------------


@pytest.fixture
def imagenet(tool, tmp_path, monkeypatch):
    """prepare_imagenet.py with archives of two classes, and the folder they lie in."""
    scipy_io = pytest.importorskip('scipy.io')
    from torchvision.datasets import imagenet as upstream

    wnids, folder = ('n01', 'n02'), tmp_path / 'archives'
    folder.mkdir()
    train = {
        f'{wnid}.tar': tarred({f'{wnid}_{n}.JPEG': jpeg(n) for n in range(2)}) for wnid in wnids
    }
    synsets = np.array(
        [(1, 'n02', 'dog, hound', 'gloss', 0), (2, 'n01', 'cat', 'gloss', 0)],
        dtype=[
            ('ILSVRC2012_ID', 'O'),
            ('WNID', 'O'),
            ('words', 'O'),
            ('gloss', 'O'),
            ('num_children', 'O'),
        ],
    )
    stream = io.BytesIO()
    scipy_io.savemat(stream, dict(synsets=synsets))
    top = 'ILSVRC2012_devkit_t12/data'
    contents = dict(
        train=tarred(train),
        val=tarred({f'ILSVRC2012_val_0000000{n}.JPEG': jpeg(n) for n in (3, 1, 2)}),
        devkit=tarred(
            {
                f'{top}/meta.mat': stream.getvalue(),
                f'{top}/ILSVRC2012_validation_ground_truth.txt': b'1\n2\n2\n',
            },
            'w:gz',
        ),
    )
    for part, content in contents.items():
        name = upstream.ARCHIVE_META[part][0]
        monkeypatch.setitem(upstream.ARCHIVE_META, part, (name, md5(content)))
        (folder / name).write_bytes(content)
    module = tool('prepare_imagenet')
    monkeypatch.setattr(module, 'CLASSES', 2)
    monkeypatch.setattr(module, 'PICTURES', dict(train=4, val=3))
    monkeypatch.setattr(module, '_SIZES', dict(train=4, val=3, devkit=1))
    return module, folder


def test_imagenet_sorts_the_validation_pictures(imagenet, tmp_path, capsys):
    module, folder = imagenet
    root = tmp_path / 'imagenet'
    arguments = [str(root), '--archives', str(folder)]
    assert module.main([*arguments, '--dry-run']) == 0 and not root.exists()
    assert module.main(arguments) == 0, capsys.readouterr().err
    assert all_files(root / 'train') == {f'n0{c}/n0{c}_{n}.JPEG' for c in (1, 2) for n in (0, 1)}
    # the first is of class 1, n02, the others of class 2, n01: in the order of their names
    assert all_files(root / 'val') == {
        'n02/ILSVRC2012_val_00000001.JPEG',
        'n01/ILSVRC2012_val_00000002.JPEG',
        'n01/ILSVRC2012_val_00000003.JPEG',
    }
    assert {path.name for path in folder.iterdir()} == {
        'ILSVRC2012_img_train.tar',
        'ILSVRC2012_img_val.tar',
        'ILSVRC2012_devkit_t12.tar.gz',
    }
    (root / 'val' / 'n01' / 'ILSVRC2012_val_00000002.JPEG').unlink()
    assert module.main([str(root), '--check']) == 1
    assert 'has 2 pictures in 2 folders; expected are 3 in 2' in capsys.readouterr().err


def test_imagenet_missing_and_damaged_archives(imagenet, tmp_path, capsys):
    module, folder = imagenet
    arguments = [str(tmp_path / 'imagenet'), '--archives', str(folder)]
    path = folder / 'ILSVRC2012_img_val.tar'
    content = path.read_bytes()
    path.unlink()
    assert module.main(arguments) == 1
    message = capsys.readouterr().err
    assert str(path) in message and 'image-net.org' in message
    path.write_bytes(content[:-600])
    assert module.main(arguments) == 1
    assert 'is damaged or another file' in capsys.readouterr().err
    assert not (tmp_path / 'imagenet').exists()
