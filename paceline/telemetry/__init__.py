"""What a process tells about its work: traces and metrics, and how they leave it."""
