"""The pickles of torch's memory snapshots: read without executing anything, and written."""
