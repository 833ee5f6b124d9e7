"""A model without a network: an OpenAI-compatible server that plays all roles from ground truth, with planted faults.

`key` what it knows, `asking` how it reads a request, `lessons` what its experiences say, `planting` which fault an
episode gets, `playing` what it answers, `truth` the side file, `server` the HTTP endpoint, `scoring` the gate's labels
against the truth. Whatever is made with it is labelled `LABEL`: it proves the machinery and says nothing about models.
"""

#: stands in the header, logs and tables of every run made with it
LABEL = "rehearsal"
#: the one model it serves
MODEL = "rehearsal"
#: `owned_by` of `/v1/models`, by which a client knows it
OWNER = "chime-rehearsal"
