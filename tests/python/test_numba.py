# SPDX-License-Identifier: Apache-2.0
"""onehop.numba without a GPU: what Numba and the linker make of kernels, as PTX."""

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from processes import run_alone


def why_no_numba():
    """Why kernels are not compiled; empty if they are."""
    try:
        version = importlib.metadata.version("numba-cuda")
        importlib.import_module("cuda.bindings.nvjitlink").version()
        importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except (importlib.metadata.PackageNotFoundError, ImportError, RuntimeError) as missing:
        return f"numba-cuda, NVRTC or nvJitLink is missing: {missing}"
    new = tuple(int(part) for part in version.split(".")[:2]) >= (0, 30)
    return "" if new else f"numba-cuda {version} is older than 0.30"


WHY = why_no_numba()
needs_numba = pytest.mark.skipif(bool(WHY), reason=WHY)

LOAD, ACQUIRE = "ld.relaxed.sys", "ld.acquire.sys"
# The accesses of each kernel that are not weak, in any order: loops are laid out as they come.
EXPECTED = {
    "signal_once": ["red.release.sys"],
    "set_once": ["st.release.sys"],
    "wait_once": [LOAD, LOAD, ACQUIRE, LOAD, "atom.acquire.gpu"],
    "wait_until_once": [ACQUIRE, LOAD, LOAD],
    "read_once": [LOAD, ACQUIRE, LOAD],
    "put_once": [],
    "get_once": [],
}
MESSAGES = ("send_once", "recv_once")
STRONG = re.compile(r"^(?:ld|st|red|atom)\.(?:relaxed|acquire|release|acq_rel)\.\w+|^fence\.\w+")
ENTRY = re.compile(r"\.entry.*?^\{(.*?)^\}", re.MULTILINE | re.DOTALL)
STEP = re.compile(
    r"^\s*(?:@\S+\s+)?\{?\s*((?:ld|st|red|atom|fence|bar)\.[\w.:]+|call)", re.MULTILINE
)


def kinds():
    types = importlib.import_module("numba.cuda").types
    return (
        types.uint64[::1],
        types.UniTuple(types.int64, 2),
        types.int32[::1],
        types.int64[::1],
    )


def compile_kernel(function, gpu=90, given=None):
    """Return the body of a kernel as PTX, linked with the device functions that it calls."""
    numba_cuda, core = importlib.import_module("numba.cuda"), importlib.import_module("cuda.core")
    signature = numba_cuda.types.void(*(given or kinds()))
    code, _ = numba_cuda.compile_all(
        function, signature, device=False, abi="numba", cc=divmod(gpu, 10), output="ltoir"
    )
    objects = [core.ObjectCode.from_ltoir(code[0]), *code[1:]]
    arch = f"sm_{gpu}"
    options = core.LinkerOptions(arch=arch, link_time_optimization=True, ptx=True)
    ptx = core.Linker(*objects, options=options).link("ptx").code.decode()
    cubin = core.LinkerOptions(arch=arch, link_time_optimization=True)
    assert core.Linker(*objects, options=cubin).link("cubin").code
    (body,) = ENTRY.findall(ptx)
    return body


@pytest.fixture(scope="module")
def kernels():
    return importlib.import_module("numba_kernels")


def strong(body):
    found = (STRONG.match(step) for step in STEP.findall(body))
    return [match[0] for match in found if match]


@needs_numba
@pytest.mark.parametrize("gpu", [80, 90])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_accesses_have_their_order_and_scope(kernels, name, gpu):
    body = compile_kernel(getattr(kernels, name), gpu)
    assert sorted(strong(body)) == sorted(EXPECTED[name])


@needs_numba
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_linked(kernels, name):
    body = compile_kernel(getattr(kernels, name))
    assert "ld.relaxed.sys.global.b128" in body
    assert "bar.sync" in body


@needs_numba
@pytest.mark.parametrize("name", ["signal_once", "set_once"])
def test_a_signal_comes_behind_what_all_threads_have_stored(kernels, name):
    steps = STEP.findall(compile_kernel(getattr(kernels, name)))
    release = next(i for i, step in enumerate(steps) if ".release." in step)
    stored = next(i for i, step in enumerate(steps) if step.startswith("st."))
    assert any(step.startswith("bar.") for step in steps[stored:release])


@needs_numba
@pytest.mark.parametrize("name", ["wait_once", "wait_until_once", "read_once", "get_once"])
def test_what_was_waited_for_is_read_behind_a_barrier(kernels, name):
    steps = STEP.findall(compile_kernel(getattr(kernels, name)))
    last = max(i for i, step in enumerate(steps) if STRONG.match(step) or step == "call")
    behind = steps[last + 1 :]
    barrier = next(i for i, step in enumerate(behind) if step.startswith("bar."))
    assert any(step.startswith("ld.global") for step in behind[barrier:])


@needs_numba
def test_a_call_is_not_copied_into_branches(kernels):
    assert strong(compile_kernel(kernels.signal_between_branches)) == ["red.release.sys"]


# Their device functions are compiled for the GPU that is there, by Numba's dispatcher.
@needs_numba
@pytest.mark.parametrize("name", ["exchange", "put_rounds", "look_at_rounds", "refused"])
def test_kernels_for_gpus_are_compiled(kernels, name, monkeypatch):
    types = importlib.import_module("numba.cuda").types
    lane, there, _, faults = kinds()
    data, fault, number = types.uint8[::1], types.int32[::1], types.int64
    given = {
        "exchange": (lane, number, data, data, number, fault),
        "put_rounds": (lane, there, data, data, number, fault),
        "look_at_rounds": (lane, data, number, fault),
        "refused": (lane, there, data, faults),
    }[name]
    device = type("Device", (), {"compute_capability": (9, 0)})
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", device)
    assert compile_kernel(getattr(kernels, name).py_func, given=given)


@needs_numba
def test_the_kernel_of_the_example_is_compiled():
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    example, types = (importlib.import_module(n) for n in ("numba_exchange", "numba.cuda.types"))
    lane, there, _, _ = kinds()
    given = (lane, there, types.float64[:, ::1], types.int64, types.int64, types.int32[::1])
    assert "red.release.sys" in compile_kernel(example.diffuse.py_func, given=given)


def refuse():
    types = importlib.import_module("numba.cuda").types
    errors = importlib.import_module("numba.core.errors")
    kernels, oh = importlib.import_module("numba_kernels"), importlib.import_module("onehop.numba")
    lane, there, data, fault = kinds()
    strided, constant = types.int32[:], types.Array(types.int32, 1, "C", readonly=True)
    pair = types.UniTuple(types.float64, 2)
    for function, given, text in (
        (kernels.recv_once, (lane, there, strided, fault), "pass a contiguous array"),
        (kernels.get_once, (lane, there, constant, fault), "is not read-only"),
        (kernels.put_once, (lane, pair, data, fault), r"device_memory\(\)"),
        (kernels.signal_once, (types.uint64, there, data, fault), "lane is uint64; pass"),
    ):
        with pytest.raises(errors.TypingError, match=text):
            compile_kernel(function, given=given)
    with pytest.raises(TypeError, match="within kernels"):
        oh.signal(None, 3)


@needs_numba
def test_arguments_of_another_type_are_refused():
    run_alone(refuse)


def import_without(found):
    def version(name):
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    importlib.metadata.version = version
    sys.modules.pop("onehop.numba", None)
    with pytest.raises(ImportError, match="pip install numba-cuda"):
        importlib.import_module("onehop.numba")


@pytest.mark.parametrize("found", [None, "0.29.1"])
def test_an_import_without_numba_says_what_to_install(found):
    run_alone(import_without, found)
