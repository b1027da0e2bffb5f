"""Who keeps a tensor alive, and what survives its step: looked for inside the job.

A search is made when the user asks (`memprof.holders`), and when something grows at the ends of
steps. It runs none of the job's code, keeps nothing alive, and stops when its time is over.
"""
