"""Models against a server of our own, and the server itself."""
