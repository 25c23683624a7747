"""From frames to a verdict: pure, without input or output."""
