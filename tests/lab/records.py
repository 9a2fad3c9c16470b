"""Write what the guest's devices look like as umockdev descriptions: ``python -m tests.lab record``.

The files stand in ``tests/support/trees``, each for one kind of device, with what a test needs side by side.
"""

from __future__ import annotations

from tests.lab.guest import Guest
from tests.lab.image import ROOT

TREES = ROOT / "tests/support/trees"
RECORDS = {
    "lab-serial": ("radio1", "radio2", "twin1", "twin2", "bare", "radio3", "quad"),
    "lab-disks": ("stick1", "stick2", "nvme2", "nvme3", "scsi1", "scsi2", "tape", "vdisk1", "vdisk2", "card"),
    "lab-networks": ("ethernet", "vnet", "usbnet", "can", "oldnet"),
    "lab-functions": ("functions",),
    "lab-network-functions": ("nic",),
    "lab-cards": (
        "edu1",
        "edu2",
        "edu3",
        "sound",
        "headset",
        "keyboard",
        "tablet",
        "reader",
        "bmc",
        "tpm",
    ),
}
HEADER = """\
# Recorded by `python -m tests.lab record` in the lab's guest: kernel {kernel}, {udev}.
# Devices of tests/lab/shelf.py: {names}.
"""


def write() -> int:
    with Guest() as guest:
        kernel = guest.run(["uname", "-r"], check=True).out.strip()
        udev = guest.run(["udevadm", "--version"], check=True).out.strip()
        for file, names in RECORDS.items():
            if not guest.devices.keys() >= set(names):
                print(f"left {file}.umockdev as it is: this QEMU has no such device")
                continue
            text = guest.python("tests.lab.inside.record", *names, seconds=900)
            header = HEADER.format(kernel=kernel, udev=f"udev {udev}", names=", ".join(names))
            (TREES / f"{file}.umockdev").write_text(f"{header}\n{text}")
            print(f"wrote {file}.umockdev")
    return 0
