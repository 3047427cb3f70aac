"""Draw the diagrams of docs/insertion_points.md: where the words after ``at`` are in a network.

Channels and strides are those that `kronattn points` prints for the configs named in the titles;
tests/test_docs/test_insertion_points.py holds the words in the pictures to built networks.
"""

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

from kronattn_mm.visualization.report import replacing

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = 'example:\n  python tools/docs/insertion_diagrams.py docs/images'
INK, PAPER, ACCENT = '#222222', '#eef1f4', '#a8320a'
HEIGHT = 0.56  # of a box, in units of the axes


class Diagram:
    """Boxes, arrows and marked points on axes whose unit is about a centimetre.

    Args:
        title (str): What network this is.
        width (float): Of the axes.
        height (float): Of the axes.
    """

    def __init__(self, title: str, width: float, height: float) -> None:
        self.figure, self.axes = plt.subplots(figsize=(width * 0.62, height * 0.62))
        self.axes.set(xlim=(-0.4, width), ylim=(0, height), aspect='equal')
        self.axes.axis('off')
        self.axes.set_title(title, fontsize=10, color=INK, loc='left')
        self.words: list[str] = []

    def box(self, x: float, y: float, text: str, width: float = 1.9, below: str = '') -> None:
        """A module with its centre at (x, y), and a line of small print under it."""
        self.axes.add_patch(
            plt.Rectangle(
                (x - width / 2, y - HEIGHT / 2),
                width,
                HEIGHT,
                facecolor=PAPER,
                edgecolor=INK,
                linewidth=0.9,
            )
        )
        self.axes.text(x, y, text, ha='center', va='center', fontsize=8, color=INK)
        if below:
            self.axes.text(
                x, y - HEIGHT / 2 - 0.1, below, ha='center', va='top', fontsize=6.5, color=INK
            )

    def arrow(self, *places: tuple[float, float]) -> None:
        """A line through the places with a head at the last one."""
        xs, ys = zip(*places, strict=True)
        self.axes.plot(xs, ys, color=INK, linewidth=0.9, solid_capstyle='butt')
        self.axes.annotate(
            '',
            places[-1],
            places[-2],
            arrowprops=dict(arrowstyle='-|>', color=INK, linewidth=0.9, shrinkA=0, shrinkB=0),
        )

    def point(self, x: float, y: float, word: str, above: bool = True, side: str = '') -> None:
        """A point where a layer can go, with the word for it."""
        self.words.append(word)
        self.axes.plot(x, y, 'D', color=ACCENT, markersize=5.5, zorder=3)
        shift = (0.14, 0.0) if side == 'right' else (0.0, 0.2 if above else -0.2)
        self.axes.text(
            x + shift[0],
            y + shift[1],
            word,
            fontsize=7.5,
            color=ACCENT,
            family='monospace',
            ha='left' if side == 'right' else 'center',
            va='center' if side else ('bottom' if above else 'top'),
        )

    def note(self, x: float, y: float, text: str, ha: str = 'left') -> None:
        """Small print anywhere."""
        self.axes.text(x, y, text, fontsize=7, color=INK, va='center', ha=ha)

    def save(self, path: Path) -> None:
        """Write a PNG, under a temporary name until it is whole."""
        with replacing(path) as draft:
            self.figure.savefig(
                draft, format='png', dpi=160, bbox_inches='tight', facecolor='white'
            )
        plt.close(self.figure)


def resnet() -> Diagram:
    """mmdet.ResNet with 50 layers, and one of its blocks."""
    drawing = Diagram('mmdet.ResNet (depth 50): backbone', 17, 4.5)
    y = 3.2
    drawing.box(1.2, y, 'conv1, maxpool', width=2.2, below='64 channels, 1/4')
    drawing.arrow((-0.3, y), (0.1, y))
    rows = [(256, 4), (512, 8), (1024, 16), (2048, 32)]
    for number, (channels, stride) in enumerate(rows, 1):
        x = 1.2 + 3.4 * number
        drawing.arrow((x - 3.4 + (1.1 if number == 1 else 0.95), y), (x - 0.95, y))
        drawing.box(x, y, f'layer{number}', below=f'{channels} channels, 1/{stride}')
    for number in range(1, 5):
        x = 1.2 + 3.4 * number + 1.35
        drawing.point(x, y, f'res{number}')
        drawing.arrow((x + 0.35, y), (x + 0.35, 0.55))
        drawing.point(x + 0.35, 1.15, f'out{number - 1}', side='right')
    drawing.axes.plot((15.75, 16.5), (y, y), color=INK, linewidth=0.9)
    drawing.note(0.25, 1.15, 'what the neck gets:')
    drawing.note(
        0.25,
        0.2,
        'res3 is read by layer4 and by the neck; out2 by the neck alone.   '
        'layer3 = res3;  layer3.* = after every block of it',
    )
    return drawing


def fpn() -> Diagram:
    """mmdet.FPN with four inputs and five outputs."""
    drawing = Diagram('mmdet.FPN (four inputs, five outputs): neck', 15, 7.3)
    for row, (level, stride) in enumerate(zip(range(2, 6), (4, 8, 16, 32), strict=True)):
        y = 1 + 1.5 * row
        drawing.note(0.1, y, f'C{level}, 1/{stride}')
        drawing.arrow((1.5, y), (2.1, y))
        drawing.box(3.2, y, f'lateral_convs.{row}', width=2.2)
        drawing.arrow((4.3, y), (6.9, y))
        drawing.point(5.75, y, f'lateral_convs.{row}')
        drawing.axes.plot(7.05, y, 'o', markersize=9, color='white', markeredgecolor=INK)
        drawing.axes.text(7.05, y, '+', ha='center', va='center', fontsize=8)
        drawing.arrow((7.2, y), (8.2, y))
        drawing.box(9.2, y, f'fpn_convs.{row}', width=2.0)
        drawing.arrow((10.2, y), (13.6, y))
        drawing.point(12.4, y, f'fpn{row + 1}')
        drawing.note(13.7, y, f'P{level}')
        if row:
            drawing.arrow((7.05, y - 0.15), (7.05, y - 1.35))
            drawing.note(7.15, y - 0.75, 'x2')
    drawing.arrow((10.9, 5.5), (10.9, 6.7), (13.6, 6.7))
    drawing.note(10.0, 6.95, 'max pool')
    drawing.point(12.4, 6.7, 'fpn5')
    drawing.note(13.7, 6.7, 'P6, 1/64')
    drawing.note(
        0.1,
        0.15,
        'fpn1 to fpn5 are the outputs: P6 is made from P5 as it was before '
        'fpn4.   lateral_convs.3 reaches every level below it.',
    )
    return drawing


def mobilenet_v2() -> Diagram:
    """mmdet.MobileNetV2, and one of its inverted residuals."""
    drawing = Diagram('mmdet.MobileNetV2: backbone, and a block of it', 19.5, 5.9)
    y = 4.6
    modules = [
        ('conv1', 32, 2),
        ('layer1', 16, 2),
        ('layer2', 24, 4),
        ('layer3', 32, 8),
        ('layer4', 64, 16),
        ('layer5', 96, 16),
        ('layer6', 160, 32),
        ('layer7', 320, 32),
        ('conv2', 1280, 32),
    ]
    drawing.arrow((-0.1, y), (0.3, y))
    for number, (name, channels, stride) in enumerate(modules):
        x = 0.85 + 2.15 * number
        drawing.box(x, y, name, width=1.1, below=f'{channels}, 1/{stride}')
        if number + 1 < len(modules):
            drawing.arrow((x + 0.55, y), (x + 1.6, y))
        drawing.point(x + 1.07, y, name)
    drawing.axes.plot((x + 0.55, x + 1.4), (y, y), color=INK, linewidth=0.9)
    y = 2.1
    drawing.note(
        0.1, 3.05, 'a block, such as layer3.1 (its path is written without "layer3.1." here):'
    )
    drawing.arrow((0.1, y), (1.2, y))
    for x, name in ((2.3, 'expand_conv'), (6.9, 'depthwise_conv'), (11.5, 'linear_conv')):
        drawing.box(x, y, name, width=2.2)
        drawing.arrow((x + 1.1, y), (x + 3.5, y) if name != 'linear_conv' else (x + 3.1, y))
        drawing.point(x + 2.2, y, name)
    drawing.axes.plot(14.8, y, 'o', markersize=9, color='white', markeredgecolor=INK)
    drawing.axes.text(14.8, y, '+', ha='center', va='center', fontsize=8)
    drawing.arrow((0.6, y), (0.6, 1.1), (14.8, 1.1), (14.8, y - 0.17))
    drawing.arrow((14.97, y), (17.2, y))
    drawing.point(16.1, y, 'layer3.1')
    drawing.note(
        0.1,
        0.35,
        "convs=[dict(at='layer*', ...)] replaces the convolutions inside the "
        'three boxes of every block: 50.',
    )
    return drawing


def ssd() -> Diagram:
    """mmdet.SSDVGG and SSDNeck for pictures of 300 x 300."""
    drawing = Diagram('mmdet.SSDVGG and mmdet.SSDNeck (SSD300): backbone and neck', 19, 6.1)
    y = 4.6
    drawing.arrow((0.0, y), (0.3, y))
    drawing.box(1.6, y, 'features.0-22', width=2.6, below='conv1_1 to conv4_3')
    drawing.arrow((2.9, y), (6.2, y))
    drawing.point(3.9, y, 'features.22')
    drawing.box(7.5, y, 'features.23-34', width=2.6, below='pool4 to fc7')
    drawing.arrow((8.8, y), (10.5, y), (10.5, 1.7))
    drawing.point(9.7, y, 'features.34')
    drawing.arrow((5.1, y), (5.1, 1.7))
    drawing.point(5.1, 3.35, 'out0', side='right')
    drawing.point(10.5, 3.35, 'out1', side='right')
    drawing.box(5.1, 1.4, 'l2_norm', width=1.5)
    drawing.arrow((5.1, 1.12), (5.1, 0.35))
    drawing.point(5.1, 0.75, 'fpn1', side='right')
    drawing.axes.plot((10.5, 10.5), (1.7, 1.4), color=INK, linewidth=0.9)
    drawing.arrow((10.5, 1.4), (10.5, 0.35))
    drawing.point(10.5, 0.75, 'fpn2', side='right')
    for number in range(4):
        x = 12.3 + 1.95 * number
        drawing.arrow((x - (1.8 if number == 0 else 1.2), 1.4), (x - 0.75, 1.4))
        drawing.box(x, 1.4, f'extra {number}', width=1.5)
        drawing.arrow((x, 1.12), (x, 0.35))
        drawing.point(x, 0.75, f'fpn{number + 3}', side='right')
    drawing.note(
        11.4, 2.3, 'extra 0 to 3: extra_layers.0 to extra_layers.3,\n10 x 10, 5 x 5, 3 x 3, 1 x 1'
    )
    drawing.note(3.5, 2.4, '512\n38 x 38', ha='right')
    drawing.note(9.9, 2.4, '1024\n19 x 19', ha='right')
    drawing.note(
        0.1,
        5.7,
        'features.22 is read by the rest of the backbone too; out0 and fpn1 '
        'by the neck and the head alone.',
    )
    return drawing


def deeplab() -> Diagram:
    """mmseg.ResNet with output stride 8 and a head."""
    drawing = Diagram('DeepLab (mmseg.ResNet with output stride 8): backbone and head', 20.5, 5.4)
    y = 4.1
    drawing.arrow((-0.3, y), (0.1, y))
    drawing.box(1.2, y, 'conv1, maxpool', width=2.2, below='64, 1/4')
    rows = [(256, 4, ''), (512, 8, ''), (1024, 8, ', dilated'), (2048, 8, ', dilated')]
    for number, (channels, stride, dilated) in enumerate(rows, 1):
        x = 1.2 + 3.1 * number
        drawing.arrow((x - 3.1 + (1.1 if number == 1 else 0.75), y), (x - 0.75, y))
        drawing.box(x, y, f'layer{number}', width=1.5, below=f'{channels}, 1/{stride}{dilated}')
    for number in range(1, 5):
        drawing.point(1.2 + 3.1 * number + 1.3, y, f'res{number}')
    drawing.arrow((14.35, y), (18.2, y), (18.2, 1.7))
    drawing.point(16.7, y, 'out0')
    drawing.note(0.1, 2.0, 'a head of mmseg:')
    drawing.box(5.3, 2.0, 'convolutions', width=2.1)
    drawing.arrow((3.6, 2.0), (4.25, 2.0))
    drawing.arrow((6.35, 2.0), (10.0, 2.0))
    drawing.point(8.1, 2.0, 'bottleneck', above=True)
    drawing.box(10.9, 2.0, 'conv_seg', width=1.8)
    drawing.note(12.0, 2.0, 'classes')
    drawing.box(18.2, 1.4, 'head', width=1.6)
    drawing.note(
        0.1,
        0.95,
        'kronattn_mm.AttentionHead: 3 x 3 convolution, then the layer given as '
        '`attention`, then conv_seg.',
    )
    drawing.note(
        0.1,
        0.35,
        'bottleneck is the name in mmseg.ASPPHead; `kronattn points CONFIG '
        'decode_head` lists those of any head.',
    )
    return drawing


DIAGRAMS = {
    'points_resnet': resnet,
    'points_fpn': fpn,
    'points_mobilenet_v2': mobilenet_v2,
    'points_ssd': ssd,
    'points_deeplab': deeplab,
}


def main(argv: list[str] | None = None) -> int:
    """Write all diagrams into a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'folder',
        type=Path,
        nargs='?',
        default=ROOT / 'docs' / 'images',
        help='where the PNG files go (default: docs/images)',
    )
    folder = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DIAGRAMS.items():
        draw().save(folder / f'{name}.png')
        print(folder / f'{name}.png')
    return 0


if __name__ == '__main__':
    sys.exit(main())
