"""Triton's kernels compiled for cards that are not there, and what the compiler says of them."""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


class Compiled(NamedTuple):
    """What one kernel takes of a multiprocessor: bytes, and registers of a thread."""

    shared: int
    registers: int
    spilled: int  # bytes of a thread that lie in memory instead of registers
    tensor_cores: bool  # whether they multiply


class Recorder:
    """Stands in the place of a kernel; keeps what it is launched with and launches nothing."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **constants: self.launches.append((grid, args, constants))


def compile_for(kernel: Any, args: tuple, constants: dict[str, Any], capability: int) -> Compiled:
    """Compile a kernel for a card as a launch with these arguments would."""
    constants = dict(constants)
    options = {k: constants.pop(k) for k in ('num_warps', 'num_stages') if k in constants}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **constants}
    signature, fixed, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if name in constants or value is None or (isinstance(value, int) and value == 1):
            signature[name] = 'constexpr'
            fixed[(place,)] = value
            continue
        signature[name] = _TYPES[value.dtype] if isinstance(value, torch.Tensor) else 'i32'
        if isinstance(value, float):
            signature[name] = 'fp32'
        elif isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[(place,)] = [['tt.divisibility', 16]]
    source = ASTSource(kernel, signature, fixed, attributes)
    result = triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)
    tensor_cores = 'mma' in result.asm['ptx']
    return Compiled(result.metadata.shared, *_registers(result.asm['cubin']), tensor_cores)


_TYPES = {torch.float16: '*fp16', torch.bfloat16: '*bf16', torch.float32: '*fp32'}


def _registers(cubin: bytes) -> tuple[int, int]:
    tool = Path(nvidia.__path__[0]) / 'bin/cuobjdump'
    file = Path(triton.knobs.cache.dir) / f'ahead_of_time_{id(cubin)}.cubin'
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(cubin)
    try:
        text = subprocess.check_output([tool, '-res-usage', file], text=True)
    finally:
        file.unlink()
    registers, stack = re.search(r'REG:(\d+) STACK:(\d+)', text).groups()
    return int(registers), int(stack)
