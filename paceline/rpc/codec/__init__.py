"""protobuf ↔ `paceline.types`, one module a message family; malformed messages name their field."""
