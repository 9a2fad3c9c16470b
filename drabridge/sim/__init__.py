"""A kubelet, an API server and a scheduler in Python that copy the real ones' behaviour and quirks over real
sockets.
"""
