"""The stored form: keys, a codec per kind of record, and guarded writes as plain values."""
