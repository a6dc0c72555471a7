"""What people look at: status, incidents, the story of a job, metrics."""
