"""Logs and metrics. Spans and exporters come with their own issue; names here use the design's vocabulary."""
