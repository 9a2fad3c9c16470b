"""Devices that both APIs may have, whichever asks first."""
