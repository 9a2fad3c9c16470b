"""Tell which virtual function a PCI function is. sysfs knows it, udev does not.

A physical function's folder has a link ``virtfn<number>`` to each of its virtual functions (Linux drivers/pci/iov.c),
and, on a network card, the interfaces below ``net``. ``udev.py`` adds what is read here as properties ``SRIOV_*`` of
the virtual function, so match rules and attributes need no special keys. The network operator's
``pfNames: ["ens1f0#1-4"]`` is ``property: {SRIOV_PF_NAME: ens1f0, SRIOV_VF: "[1-4]"}``.
"""

from __future__ import annotations

import os

from drabridge.inventory.udev_device import clean
from drabridge.system.files import link_name, names_in

PREFIX = "SRIOV_"
"""Prefix of the properties' names. udev and its rules use no such names."""


def properties_of(syspath: str, physfn: str) -> dict[str, str]:
    """Return ``SRIOV_VF``, the number of the virtual function, and ``SRIOV_PF_NAME``, the physical one's interface.

    What cannot be read is left out.
    """
    found = {}
    name = os.path.basename(syspath)
    for entry in names_in(physfn):
        number = entry.removeprefix("virtfn")
        if number != entry and number.isdecimal() and link_name(f"{physfn}/{entry}") == name:
            found[f"{PREFIX}VF"] = number
    if interfaces := names_in(f"{physfn}/net"):
        found[f"{PREFIX}PF_NAME"] = clean(interfaces[0])
    return found
