"""The stream aggregator: a Lambda function that turns changes of buckets into usage snapshots."""
