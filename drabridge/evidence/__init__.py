"""What kubelet, its checkpoint, the API server and open files say about who holds a device."""
