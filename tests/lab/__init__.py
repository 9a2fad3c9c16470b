"""A hardware lab: a virtual machine with a real kernel, a real udevd and a shelf of devices, without KVM.

``image`` builds what it boots from, ``shelf`` lists its devices, ``guest`` starts it and talks to it, ``inside`` is
what runs in it. ``python -m tests.lab --help`` has the commands.
"""
