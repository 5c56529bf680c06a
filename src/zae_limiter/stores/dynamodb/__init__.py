"""DynamoDB: the distributed store. One table, one conditional write per acquire, a small client of its own."""
