"""Whether the data of a config can be trained and evaluated on: every picture is read once.

    config --(entries)--> data sets --(coco, voc, segmentation, classification)--> annotations
                                                   --(pictures)--> findings --> report

The libraries pass over much in silence: objects of classes that a config does not name, boxes that
lie outside, masks without an area; a truncated picture is grey below. Here the files are read as
they are, and what a training would lose or stumble over is listed.
"""

from .check import check_config
from .findings import KINDS, Finding
from .report import DataReport, EntryReport, report_text

__all__ = ['KINDS', 'DataReport', 'EntryReport', 'Finding', 'check_config', 'report_text']
