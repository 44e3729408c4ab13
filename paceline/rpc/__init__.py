"""The wire: server shell, channels, links, codec and the mapping of errors to gRPC statuses."""
