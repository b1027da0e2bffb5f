"""What records a job while it runs, without torch: from `track` to the records of the run file."""
