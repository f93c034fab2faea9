"""The REST API of the master, under /v1; described at /docs and /openapi.json.

    POST /v1/jobs[?fresh=true]         start a job: its specification as JSON or YAML -> 202, Location; Idempotency-Key
    GET  /v1/jobs[?state=&kind=]       jobs, newest first, in pages
    GET  /v1/jobs/{name}               the full status of one
    PATCH /v1/jobs/{name}              change a part of it while it runs; Idempotency-Key
    POST /v1/jobs/{name}:pause         also :resume, :stop; idempotent; 409 if the state does not allow it
    GET  /v1/jobs/{name}/events        server-sent events; resumes after `Last-Event-ID`
    GET  /v1/jobs/{name}/log           the events so far
    GET, PUT, DELETE /v1/extractors/{name}, /v1/trainers/{name}    registrations, with ETag and If-Match
    GET  /v1/registrations/changes     who registered what
    GET  /v1/pools, PUT, DELETE /v1/pools/{name}                   sizes and reasons; bounds
    GET  /v1/conditions                what keeps pools, trainers or the master from working now
    /                                  a page for users
    /metrics /livez /readyz            for Prometheus and probes

`app.py` puts the routes together, one module each. `guard.py` checks tokens and sizes before the body is read, and
`problems.py` makes every error a problem document (RFC 9457).
"""
