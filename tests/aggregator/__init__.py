"""Tests of the stream aggregator."""
