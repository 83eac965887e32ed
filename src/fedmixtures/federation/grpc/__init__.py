"""Plain gRPC as the carrier: a hub that hands boxes on, mutual TLS, nothing kept at the hub."""
