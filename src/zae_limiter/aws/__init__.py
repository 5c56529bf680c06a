"""AWS around the table: the stack, the Lambda package, versions and migrations. Blocking, over botocore."""
