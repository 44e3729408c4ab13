"""What the pipeline could do at best: its policy in simulated time, without any software."""
