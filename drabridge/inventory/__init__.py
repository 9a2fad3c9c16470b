"""The devices that exist on this node: found by udev, matched, named and placed, as immutable snapshots."""
