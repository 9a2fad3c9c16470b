"""What exists on this node: udev's devices, matched, named and placed, as immutable snapshots."""
