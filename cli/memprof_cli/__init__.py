"""The command line of memprof: one file a command, and one place where an error ends."""
