"""The pages of memprof: a recorded run in, HTML out."""
