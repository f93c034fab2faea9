"""Jobs as objects of Kubernetes: the custom resource `VideoJob` (docs/kubernetes.md, decision 67).

resource.py     one VideoJob, as the API server gives it
decision.py     what to do about one, given its job; pure
view.py         the status of a VideoJob, from its job's status; pure
cluster.py      the requests to the API server
claims.py       what VideoJobs say, for the REST API and for the pools
controller.py   the loop that brings VideoJobs and jobs together
"""
