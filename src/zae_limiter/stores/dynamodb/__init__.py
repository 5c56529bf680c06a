"""DynamoDB, the distributed store: one table, one conditional write per acquire, and a small client of its own."""
