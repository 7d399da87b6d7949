# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch as buffers: what their bytes do not show is refused, with what to do instead."""

import warnings

import onehop
import pytest
from processes import LocalPair, finish

torch = pytest.importorskip("torch", reason="torch is not installed")

GPU = pytest.mark.skipif(
    not torch.cuda.is_available() or onehop._core.kernel_image_size() == 0,
    reason="needs a GPU, PyTorch with CUDA, and a build with kernels",
)


class ByDlpack(torch.Tensor):
    """A tensor of a torch that has no C exchange API yet."""

    __dlpack_c_exchange_api__ = None


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=GPU)])
def device(request):
    return request.param


@pytest.fixture
def pair(device):
    made = LocalPair(*[None if device == "cpu" else device] * 2)
    yield made
    for endpoint in made.endpoints:
        endpoint.close()


def as_it_is(tensor):
    return tensor


def by_dlpack(tensor):
    return tensor.as_subclass(ByDlpack)


def move(pair, sent, received):
    # Receives into GPU memory are announced once what was enqueued before them has run.
    return finish(pair.second.irecv(received), pair.first.isend(sent))


def refused(pair, tensor, match, error=onehop.InvalidArgument):
    """Assert that no call takes the tensor."""
    region = pair.endpoints[1].register(bytearray(64))
    remote = pair.first.attach(region.descriptor, timeout=30)
    for call in (
        lambda: pair.first.send(tensor, timeout=5),
        lambda: pair.first.isend(tensor),
        lambda: pair.second.recv(tensor, timeout=5),
        lambda: pair.second.irecv(tensor),
        lambda: pair.endpoints[1].irecv(tensor),
        lambda: pair.endpoints[0].register(tensor),
        lambda: pair.first.put(tensor, remote),
        lambda: pair.first.get(tensor, remote),
        lambda: pair.first.send_batch(tensor, [0], [1], timeout=5),
        lambda: pair.second.irecv_batch(tensor, [0], [1]),
        lambda: pair.first.put_batch(tensor, remote, [0], [0], [1]),
        lambda: pair.first.prepare_get(tensor, remote, [0], [0], [1]),
    ):
        with pytest.raises(error, match=match):
            call()


# ---- Lazy views


@pytest.mark.parametrize("way", [as_it_is, by_dlpack])
@pytest.mark.parametrize("kind", [torch.complex32, torch.complex64, torch.complex128])
def test_a_lazy_conjugate_is_refused(pair, device, kind, way):
    values = torch.full((6,), 1 + 2j, dtype=kind, device=device)
    view = way(values.conj())
    refused(pair, view, r"lazy conjugate.*call \.resolve_conj\(\)")
    received = torch.zeros_like(values)
    move(pair, way(view.resolve_conj()), way(received))
    assert torch.equal(received.imag.cpu(), torch.full_like(received.imag.cpu(), -2))


@pytest.mark.parametrize("way", [as_it_is, by_dlpack])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.complex64])
def test_a_lazy_negative_is_refused(pair, device, kind, way):
    values = torch.full((6,), 3, dtype=kind, device=device)
    view = way(torch._neg_view(values))
    refused(pair, view, r"lazy negative.*call \.resolve_neg\(\)")
    received = torch.zeros_like(values)
    move(pair, way(view.resolve_neg()), way(received))
    assert torch.equal(received, -values)


def test_the_imaginary_part_of_a_conjugate_is_a_lazy_negative(pair, device):
    part = torch.full((1,), 1 + 2j, device=device).conj().imag
    assert part.is_contiguous()
    assert part.is_neg()
    refused(pair, part, r"call \.resolve_neg\(\)")


def test_views_that_are_both(pair, device):
    values = torch._neg_view(torch.ones(3, dtype=torch.complex64, device=device).conj())
    refused(pair, values, r"call \.resolve_conj\(\)")


def test_a_lazy_view_within_inference_mode(pair, device):
    with torch.inference_mode():
        refused(pair, torch.ones(3, dtype=torch.complex64, device=device).conj(), "resolve_conj")


# ---- Without plain memory


def made_fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3)


def made_wrapper():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError(function)

    return Wrapper(torch.zeros(3))


def made_masked():
    from torch.masked import masked_tensor

    return masked_tensor(torch.zeros(3), torch.ones(3, dtype=torch.bool))


def made_freed():
    tensor = torch.zeros(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        made_fake,
        made_wrapper,
        made_masked,
        made_freed,
        lambda: torch._efficientzerotensor(3),
    ],
    ids=["fake", "wrapper", "masked", "freed", "zeros"],
)
def test_elements_without_memory_are_refused(host_pair, make):
    refused(host_pair, make(), "has no memory behind its 12 bytes")


def quantized():
    return torch.quantize_per_tensor(torch.arange(3.0), 0.1, 3, torch.quint8)


KINDS = {
    "COO": (lambda: torch.eye(3).to_sparse(), r"layout torch\.sparse_coo.*to_dense\(\)"),
    "CSR": (lambda: torch.eye(3).to_sparse_csr(), r"layout torch\.sparse_csr.*to_dense\(\)"),
    "mkldnn": (lambda: torch.zeros(2, 2).to_mkldnn(), r"layout torch\._mkldnn.*to_dense\(\)"),
    "meta": (lambda: torch.zeros(3, device="meta"), "is on the meta device"),
    "quantized": (quantized, r"is quantized.*int_repr\(\)"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "is nested"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged),
        "is nested",
    ),
    "bits": (lambda: torch.zeros(3, dtype=torch.uint8).view(torch.bits8), "Bit types"),
    "lazy parameter": (torch.nn.UninitializedParameter, "uninitialized parameter"),
}


@pytest.fixture
def host_pair():
    made = LocalPair()
    yield made
    for endpoint in made.endpoints:
        endpoint.close()


@pytest.mark.parametrize("name", KINDS)
def test_tensors_that_are_no_plain_memory_are_refused(host_pair, name):
    make, match = KINDS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not yet stable in torch
        tensor = make()
    refused(host_pair, tensor, match)


def test_tensors_of_transformed_functions_are_refused(host_pair):
    def look(tensor):
        refused(host_pair, tensor, r"has no (plain memory|memory behind)")
        return tensor.sum()

    torch.vmap(look)(torch.zeros(2, 3))
    torch.func.grad(look)(torch.zeros(3))
    torch.func.functionalize(look)(torch.zeros(3))


# ---- Shapes


def test_elements_that_share_memory_are_refused(pair, device):
    values = torch.arange(12.0, device=device)
    overlapping = values.as_strided((3, 4), (2, 1))
    for view in (values[:1].expand(4), overlapping, values[::2], values.view(3, 4).T):
        refused(pair, view, "not C-contiguous")


def test_no_elements_at_all(pair, device):
    whole = torch.zeros(5, device=device)
    for empty in (whole[:0], whole[5:], whole[:0].expand(4, 0), whole[:0].view(3, 0).T):
        assert move(pair, empty, empty).nbytes == 0


def test_kinds_whose_bytes_are_their_values(pair, device):
    bits = torch.arange(48, dtype=torch.uint8, device=device)
    kinds = [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
    kinds += [torch.complex64, torch.uint16]
    for kind in kinds:
        sent = (bits % 2).view(kind) if kind is torch.bool else bits.view(kind)
        received = torch.zeros_like(sent)
        assert move(pair, sent, received).nbytes == 48
        assert torch.equal(received.view(torch.uint8), sent.view(torch.uint8))
    # A part of a storage, a scalar, a dimension of one with any stride, a real view of complex.
    odd = bits[:12].as_strided((1, 12), (77, 1))
    for sent in (bits[7:20], bits[3], odd, torch.view_as_real(bits.view(torch.complex64))):
        received = torch.zeros_like(sent)
        move(pair, sent, received)
        assert torch.equal(received.view(-1).view(torch.uint8), sent.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("way", [as_it_is, by_dlpack])
def test_gradients_do_not_matter(pair, device, way):
    sent = torch.arange(4.0, device=device, requires_grad=True)
    received = torch.zeros(4, device=device, requires_grad=True)
    move(pair, way(sent), way(received))
    assert torch.equal(received.detach(), sent.detach())
    parameter = torch.nn.Parameter(torch.zeros(4, device=device))
    finish(pair.second.irecv(parameter), pair.first.isend(way(sent)))
    assert torch.equal(parameter.detach(), sent.detach())
