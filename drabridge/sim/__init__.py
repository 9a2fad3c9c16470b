"""Simulate a kubelet, an API server and a scheduler over real sockets, with the real ones' behaviour and quirks."""
