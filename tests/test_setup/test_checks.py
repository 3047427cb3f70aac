"""What a machine lacks is said before anything is installed, all at once."""

import checks
import pytest


def texts(findings):
    return ' | '.join(finding.text for finding in findings)


def test_a_complete_machine_has_no_findings(machine, tmp_path):
    assert checks.check_venv(machine) == []
    assert checks.check_disk(machine, tmp_path, needed=8) == []
    assert checks.check_compiler(machine) == []
    assert checks.check_opencv_libraries(machine) == []
    assert checks.check_gpu(machine, compiles=True) == []


def test_missing_compiler_names_the_package(machine):
    machine.programs = set()
    (finding,) = checks.check_compiler(machine)
    assert 'no C++ compiler' in finding.text
    assert finding.package == 'g++'
    assert finding.blocks


def test_the_compiler_of_CXX_is_the_one_that_counts(machine):
    machine.variables['CXX'] = 'clang++'
    (finding,) = checks.check_compiler(machine)
    assert 'CXX=clang++' in finding.text
    machine.programs.add('clang++')
    assert checks.check_compiler(machine) == []


def test_missing_headers_and_venv_name_the_python_version(machine):
    machine.headers = False
    machine.missing_modules = {'ensurepip'}
    assert checks.check_compiler(machine)[0].package == 'python3.11-dev'
    assert checks.check_venv(machine)[0].package == 'python3.11-venv'


def test_missing_libGL_does_not_block(machine):
    machine.missing_libraries = {'libGL.so.1'}
    (finding,) = checks.check_opencv_libraries(machine)
    assert not finding.blocks
    assert 'libGL.so.1' in finding.text and finding.package == 'libgl1'
    report = checks.report([finding])
    assert report.startswith('note: ') and 'nothing was installed' not in report


def test_too_little_disk_says_how_much_is_needed(machine, tmp_path):
    machine.free = 3 * 2**30
    (finding,) = checks.check_disk(machine, tmp_path, needed=8)
    assert '3.0 GB are free' in finding.text and 'needs 8 GB' in finding.text
    assert finding.blocks


@pytest.mark.parametrize('compiles', [True, False])
def test_gpu_without_nvcc_is_said_where_the_operators_are_compiled(machine, compiles):
    machine.gpu = True
    findings = checks.check_gpu(machine, compiles)
    assert bool(findings) == compiles
    if compiles:
        assert 'CPU only' in findings[0].text and not findings[0].blocks
    machine.programs.add('nvcc')
    assert checks.check_gpu(machine, compiles) == []


def test_nvcc_is_looked_for_in_CUDA_HOME_first(machine):
    machine.programs |= {'nvcc', '/opt/cuda/bin/nvcc'}
    assert checks.find_nvcc(machine) == '/usr/bin/nvcc'
    machine.variables['CUDA_HOME'] = '/opt/cuda'
    assert checks.find_nvcc(machine).endswith('/opt/cuda/bin/nvcc')
    machine.variables['CUDA_HOME'] = '/nowhere'
    assert checks.find_nvcc(machine) is None


def test_the_report_has_every_finding_and_one_command(machine, tmp_path):
    machine.programs = set()
    machine.headers = False
    machine.missing_modules = {'ensurepip'}
    machine.missing_libraries = {'libGL.so.1', 'libgthread-2.0.so.0'}
    machine.free = 0
    findings = [
        *checks.check_venv(machine),
        *checks.check_disk(machine, tmp_path, 8),
        *checks.check_opencv_libraries(machine),
        *checks.check_compiler(machine),
    ]
    report = checks.report(findings)
    for finding in findings:
        assert finding.text in report
    assert 'nothing was installed' in report
    assert report.splitlines()[-1] == (
        'On Debian or Ubuntu: sudo apt-get install python3.11-venv g++ python3.11-dev'
    )


def test_the_real_probes_answer(tmp_path):
    machine = checks.Machine()
    assert machine.which('sh')
    assert machine.which('no-such-program') is None
    assert machine.loads('libc.so.6')
    assert not machine.loads('libno-such-library.so.1')
    assert machine.has_module('json') and not machine.has_module('no_such_module')
    assert machine.cores() >= 1
    assert machine.free_bytes(tmp_path) > 0 and machine.memory_bytes() > 2**20
