"""A backbone from the names of one library to those of another, attended or not.

MobileNetV2 and ResNet of torchvision, mmpretrain, mmseg and mmdet; ShuffleNetV2 of torchvision and
mmpretrain; MnasNet of torchvision and kronattn_mm. Nothing is computed: outputs are equal. What
the library of the result does not have (a classifier in a detector) is dropped and said.
"""

import sys

from ...cost.command_line import Parser
from ..backbone_names import convert
from ..backbone_tables import LIBRARIES
from ..command_line import add_file_arguments, add_target_arguments, run

EXAMPLE = """kronattn convert backbone mobilenet_v2.pth out.pth --to mmdet --bare
  kronattn convert backbone classifier.pth out.pth --to mmdet --bare \\
      --config mmdet::ssd/ssdlite_mobilenetv2-scratch_8xb24-600e_coco.py --part backbone"""
_LIBRARIES = sorted({name for names in LIBRARIES.values() for name in names})


def main(argv: list[str] | None = None) -> int:
    parser = Parser(__doc__, EXAMPLE)
    add_file_arguments(parser)
    add_target_arguments(parser)
    parser.add_argument('--to', required=True, choices=_LIBRARIES, help='whose names are wanted')
    parser.add_argument(
        '--from',
        dest='source',
        choices=_LIBRARIES,
        help='whose names the weights have (default: what they look like)',
    )
    parser.add_argument(
        '--bare',
        action='store_true',
        help='the backbone alone, without `backbone.` before its keys: for '
        "init_cfg with type='Pretrained'",
    )
    arguments = parser.parse_args(argv)
    return run(
        parser,
        arguments,
        lambda source, model: convert(source.state, arguments.to, arguments.source, arguments.bare),
    )


if __name__ == '__main__':
    sys.exit(main())
