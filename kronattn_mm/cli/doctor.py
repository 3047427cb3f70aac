"""What this environment has and lacks, with the command that mends it.

Versions and files of every package that matters, of both OpenMMLab stacks; whether mmcv's operators
load; the devices; a forward and backward pass of every layer on each of them. Exit code 1 if
something is broken. For a bug report: --json.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ..doctor import BAD, NOTE, OK, Finding, examine

EXAMPLE = """kronattn doctor
  kronattn doctor --json > environment.json"""
_MARKS = {OK: 'ok  ', NOTE: 'note', BAD: 'BAD '}


def main(argv: list[str] | None = None) -> int:
    # Not the other commands' parser: this one must work where nothing else is installed.
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f'example:\n  {EXAMPLE}',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of text')
    arguments = parser.parse_args(argv)
    findings = examine()
    print(
        json.dumps([asdict(item) for item in findings], indent=2)
        if arguments.json
        else doctor_text(findings)
    )
    return 1 if any(item.level == BAD for item in findings) else 0


def doctor_text(findings: Sequence[Finding]) -> str:
    """Lay out the findings by group, and at the end what there is to do."""
    width = max(len(item.name) for item in findings)
    lines = []
    group = ''
    for item in findings:
        if item.group != group:
            group = item.group
            lines += ['', group] if lines else [group]
        lines.append(f'  {_MARKS[item.level]} {item.name:{width}}  {item.value}')
    bad = [item for item in findings if item.level == BAD]
    notes = [item for item in findings if item.level == NOTE and item.remedy]
    lines.append('')
    if bad:
        lines.append(f'{len(bad)} broken:')
        lines += [f'  {item.name}: {item.remedy or item.value}' for item in bad]
    else:
        lines.append('nothing is broken')
    if notes:
        lines.append('if you need them:')
        lines += [f'  {item.name}: {item.remedy}' for item in notes]
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
