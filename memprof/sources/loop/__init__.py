"""Where the program is: its steps, phases and modules, told by hooks; nothing of memory."""
