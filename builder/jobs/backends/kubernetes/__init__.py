"""Jobs in a cluster of Kubernetes: each is one JobSet.

access.py and client.py reach the cluster, jobset.py and pod.py render a job, checks.py refuses what
a JobSet cannot say, status.py and logs.py read what became of it, backend.py is the protocol.
"""
