"""Jobs in a cluster of Kubernetes: each is one JobSet.

client.py reaches the cluster, jobset.py and pod.py render a job, status.py reads what became of it,
backend.py is the protocol.
"""
