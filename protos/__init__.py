"""Protocol definitions and the stubs generated from them (`make protos`)."""
