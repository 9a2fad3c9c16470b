"""What is said of a kubeconfig that is no YAML never has a part of its text: a password may begin as a tag does."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.errors import ConfigError
from drabridge.kube.kubeconfig import configuration_of
from podresources.resolve.api_server import ApiServerError, of_kubeconfig


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("!hunter2 x", "could not determine a constructor for the tag in line 3"),
        ("*hunter2", "found undefined alias in line 3"),
        ("'hunter2", "found unexpected end of stream"),
    ],
)
def test_no_part_of_the_file_is_quoted(tmp_path: Path, password: str, said: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(f"users:\n- name: u\n  user: {{password: {password}}}\n")
    for read, error in ((configuration_of, ConfigError), (of_kubeconfig, ApiServerError)):
        with pytest.raises(error) as caught:
            read(path)
        assert "hunter2" not in str(caught.value)
        assert said in str(caught.value)
