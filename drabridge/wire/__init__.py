"""Generated contracts; the sources are under ``proto/``."""
