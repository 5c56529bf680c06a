"""The repository: entities, limits, namespaces, audit and usage, written once over the store port."""
