"""A loopback cluster that speaks enough of the API for kubectl."""
