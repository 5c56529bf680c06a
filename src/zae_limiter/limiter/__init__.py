"""The limiter: acquire, lease, looking. Written once as coroutines over the store and runtime ports."""
