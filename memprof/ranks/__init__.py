"""The files of a job's ranks, judged together."""
