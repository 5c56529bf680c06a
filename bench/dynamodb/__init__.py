"""DynamoDB: ours beside the reference, the same work on the same engine in the same run."""
