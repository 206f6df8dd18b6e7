"""The values that travel: host facts and request in, plan out, and their JSON. Imports `errors`."""
