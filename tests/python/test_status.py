# SPDX-License-Identifier: Apache-2.0
"""The status codes and exceptions are those of the C API."""

import pickle
import re
from pathlib import Path

import onehop
import pytest
from onehop import _core


def header_list():
    """The list as it stands in the header that the package installs."""
    text = Path(onehop.get_include(), "onehop", "status.h").read_text()
    text = text[text.index("#define OH_STATUS_LIST") : text.index("typedef enum oh_status")]
    pattern = r"X\((OH_\w+), (-?\d+), (OH_SCOPE_\w+),\s*\\?\s*\"([^\"]+)\"\)"
    return [
        (name, int(value), scope, what) for name, value, scope, what in re.findall(pattern, text)
    ]


def short(name):
    return name.removeprefix("OH_ERR_").removeprefix("OH_")


def test_every_code_is_there_both_ways():
    header = header_list()
    assert len(header) > 20
    assert [(name, value) for name, value, _, _ in header] == _core.status_list()
    assert {short(name): value for name, value, _, _ in header} == {
        status.name: status.value for status in onehop.Status
    }


@pytest.mark.parametrize(("name", "value", "scope", "text"), header_list())
def test_scope_and_text_round_trip(name, value, scope, text):
    status = onehop.Status(value)
    assert status.name == short(name)
    assert _core.status_scope(status).name == scope.removeprefix("OH_SCOPE_")
    assert _core.status_text(status) == text


def test_classes_follow_the_scopes():
    assert issubclass(onehop.TimeoutError, onehop.OperationError)
    assert issubclass(onehop.TimeoutError, TimeoutError)
    assert issubclass(onehop.InvalidArgument, ValueError)
    assert issubclass(onehop.InvalidType, TypeError)
    assert issubclass(onehop.OutOfRange, IndexError)
    assert issubclass(onehop.PeerLost, onehop.LinkError)
    for kind in (onehop.OperationError, onehop.LinkError, onehop.EndpointError):
        assert issubclass(kind, onehop.Error)


def test_errors_can_be_passed_between_processes():
    error = onehop.PeerLost(onehop.Status.PEER_LOST, "gone")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is onehop.PeerLost
    assert again.status is onehop.Status.PEER_LOST
    assert again.scope is onehop.Scope.LINK
    assert str(again) == "gone"


def test_configuration_errors_name_the_variable(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "soon")
    with pytest.raises(onehop.EndpointError, match="ONEHOP_TIMEOUT=soon") as caught:
        onehop.Endpoint()
    assert caught.value.status is onehop.Status.CONFIG


def test_other_devices_are_not_viable():
    with pytest.raises(onehop.OperationError) as caught:
        onehop.Endpoint(device=0)
    assert caught.value.status is onehop.Status.NOT_VIABLE


def test_config_lists_the_variables(monkeypatch):
    monkeypatch.setenv("ONEHOP_SECRET", "sixteen letters and more")
    variables = {variable.name: variable for variable in onehop.config()}
    assert variables["ONEHOP_TIMEOUT"].default == "300"
    assert variables["ONEHOP_SECRET"].value == "(hidden)"
    assert variables["ONEHOP_LOG"].meaning


def test_info_says_what_is_viable():
    info = onehop.info()
    assert info.version == onehop.__version__
    viable = {transport.name: transport.viable for transport in info.transports}
    assert viable["shm"]
    assert all(transport.why for transport in info.transports)
