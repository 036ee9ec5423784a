"""Front-ends: HTTP servers whose engine runs in another process."""
