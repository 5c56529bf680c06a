"""The Redis that the tests run on: real ``redis-server`` processes of this run, on loopback, and what can go wrong."""
