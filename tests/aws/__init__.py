"""The bench around the DynamoDB store: an engine, a recording wire in front of it, and a strict reader of requests."""
