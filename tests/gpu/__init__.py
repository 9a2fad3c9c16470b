"""What a machine with an NVIDIA GPU has to show: ``make gpu``. The same steps run with stand-ins in ``make test``."""
