"""A loopback cluster: an API server, the controllers of JobSets and Jobs, and something that runs
pods, as containers of the engine or by a script. It speaks enough of the protocol for kubectl."""
