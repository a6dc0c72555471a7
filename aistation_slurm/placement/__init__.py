"""Where jobs go: the decision ahead of time, its table for job_submit.lua, pending jobs, rank order, explanation, simulation."""
