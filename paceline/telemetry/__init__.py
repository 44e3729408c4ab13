"""What the services tell of themselves: spans of every request, by OpenTelemetry's protocol."""
